"""Who is dead, frozen or only slow: beside each rank a small process, the sentinel.

::

    rank 0 ◀─ frames, board ─▶ sentinel 0 ◀═ datagrams ═▶ sentinel 1 ◀─ frames, board ─▶ rank 1

A rank that evaluates, compiles or sits in a C call cannot answer, and is well. So nobody asks the
rank: its sentinel asks the kernel, and needs no interpreter lock for that. Sentinels tell each
other what they see, judge it (``judge.py``), and tell their ranks. Of a peer that has fallen silent
they ask its kernel (``knock.py``). A sentinel that is lost is replaced (``watcher.py``). Without
``/proc`` (not Linux) deaths are noticed and freezing is not.

The rank's side is ``watcher.Watcher``. Nothing is imported here, because a sentinel loads this
package too, without what only a rank needs.
"""
