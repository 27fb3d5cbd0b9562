"""``tdcd watch``: a page in the browser that follows runs while they train.

It reads run folders and nothing else, and writes nothing: no request can change a run, and a run does not know that it
is watched.

::

    folders.py      the runs in the folders that were given: simulations, sweeps, trials, hubs
    history.py      history.jsonl, read on from where the last look ended
    curve.py        its figures, thinned to a few thousand points however long the run is
    run.py          one run as the page shows it: state in words, figures, time left
    parties.py      who is connected, waited for and left out; who worked and who waited
    watcher.py      all of it as one JSON document, with only the points that a page does not have yet
    server.py       the web server
    page/           HTML, CSS and JavaScript
"""
