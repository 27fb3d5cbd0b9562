"""``tdcd watch``: a page in the browser that follows runs while they train.

It reads run folders and nothing else, and writes nothing: no request can change a run, and a run does not know that it
is watched.

::

    folders.py      the runs in the folders that were given: simulations, sweeps, trials, hubs
    history.py      history.jsonl, read on from where the last look ended, thinned to a few hundred points
    run.py          the facts of one run: state in words, figures, time left
    parties.py      who is connected, waited for and left out; who worked and who waited
    page.py         the page, made of the kit, by parts; with only those that a browser does not have yet
    server.py       all runs, as of the last look, and the web server
    browser/        what shows the parts: HTML, CSS and JavaScript
"""
