"""Liveness: detect ranks that are dead, frozen or only slow, by a sentinel process beside each.

::

    rank 0 ◀─ frames, shared page ─▶ sentinel 0 ◀═ datagrams ═▶ sentinel 1 ◀─ ... ─▶ rank 1

A rank that evaluates, compiles or sits in a C call cannot answer, and is well. So the rank itself
is not asked: its sentinel asks the operating system's kernel, and needs no interpreter lock for
that. Sentinels exchange their state over UDP (``udp.py``), decide which rank has failed
(``failure_detector.py``), and tell their ranks. When a peer falls silent they probe its host by TCP
(``tcp_probe.py``). A lost sentinel is replaced (``watcher.py``). Without ``/proc`` (not Linux)
deaths are noticed and freezing is not.

The rank's side is ``watcher.Watcher``. Nothing is imported here, because a sentinel loads this
package too, without the modules that only a rank needs.
"""
