"""A lake: tables on disk, in memory and at S3, changed by both libraries while storage denies, delays, loses and dies.

server      S3 in this process (moto), which denies actions by the access key, throttles, and loses or delays answers
traps       calls of our stores that fail, kill the process, or let another writer go first; clocks of writers
changes     changes of rows, each as what it does to a table and to the model
model       tables, branches, tags, clones, and the rows of each version
places      disk, memory and S3; moving time and tearing files past both libraries
lake        takes a step with a fault, judges its error, compares the lake with the model
references  the steps of tags, branches, clones and restores
machine     the other steps
runs        one seed
"""
