"""Pages: each is one HTML file that needs no network; the live page follows runs while they train.

::

    kit/              what all of them are made of
    report.py         a run: report.html, with predictions.py and timeline.py, its two long parts
    comparison.py     tdcd compare: compare.html
    sweep.py          a sweep: sweep.html
    bound.py          tdcd bound: bound.html
    audit.py          tdcd audit: audit.html
    scorecard.py      tdcd export --scorecard
    reproduction.py   tdcd reproduce: reproduce.html, and its pictures
    live/             tdcd watch

Whoever runs something writes its report; so the kit and the report import only records. The other pages import what
they show, and only commands import them.
"""
