"""``bytelane zoo``: list built-in models, or write one as a job file."""

from pathlib import Path
from typing import Annotated

import typer

from bytelane.cli.options import Accelerator, Batch, Json
from bytelane.cli.output import print_json, print_table
from bytelane.terminal import show


def zoo(
    name: Annotated[
        str | None, typer.Argument(help="Model to write as a job file.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Job file to write. [default: NAME.toml]", metavar="FILE"),
    ] = None,
    accelerator: Accelerator = None,
    batch: Batch = None,
    as_json: Json = False,
) -> None:
    """List the models that every command knows by name, or write one as a job file.

    Sizes are computed from the architectures; times are estimates for an accelerator and a batch.
    """
    from bytelane.errors import InputError
    from bytelane.job import save
    from bytelane.job import zoo as models

    if name is not None:
        path = out or Path(f"{name}.toml")
        job = models.make(name, accelerator=accelerator, batch=batch)
        save(job, path)
        if as_json:
            print_json({"job": job.name, "total_bytes": job.total_bytes, "job_file": str(path)})
        else:
            show(f"wrote {path}")
        return
    if out is not None or accelerator is not None or batch is not None:
        raise InputError("out, accelerator and batch go with the name of a model")
    summaries = [models.summary(model) for model in models.names()]
    if as_json:
        print_json(summaries)
        return
    print_table(
        ("model", "parameters", "gradients", "tensors", "layers", "forward per sample"),
        [
            (
                s.name,
                f"{s.parameters:,}" if s.parameters else "-",
                f"{s.gradient_bytes / 1e6:.1f} MB",
                str(s.tensors),
                str(s.layers),
                f"{s.forward_gflops:.1f} GFLOP" if s.forward_gflops else "-",
            )
            for s in summaries
        ],
    )
