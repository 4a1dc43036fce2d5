"""A judge that stays up between the commands of a session.

A command that judges by itself imports torch first, which takes longer than a quick check. So
`session start` starts a process that does that once, and the session's other commands ask it. It
calls the functions that they would call, in `session`; candidates run in workers, as everywhere.

place     where it is found, what a command must have in common with it, how the two speak
launch    start the process
client    a command's side: ask it, or say why this command judges by itself
server    the process: who may ask, one call at a time, when it ends
imported  which files it has imported, and whether they are still the same
"""
