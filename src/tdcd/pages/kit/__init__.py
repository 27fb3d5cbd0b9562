"""What pages are made of.

::

    html.py         the document, its one stylesheet and script, and its pieces; the only place that escapes
    chart.py        all charts: curves with bands on linear or logarithmic axes, points, histograms, bars
    federation.py   the drawing of a federation
"""
