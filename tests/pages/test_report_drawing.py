"""The federation's drawing, measured."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from run_folders import silo

from tdcd.pages.report import federation_drawing
from tdcd.records.run_folder import FederationFacts

pytestmark = pytest.mark.quick


def draw(*silos):
    facts = FederationFacts.model_validate({"name": "x", "num_samples": 100, "num_test": 0, "silos": silos})
    return ET.fromstring(federation_drawing(facts))


def of_class(drawing, tag, name):
    return [element for element in drawing.iter(tag) if element.get("class") == name]


def numbers(elements, attribute):
    return [float(element.get(attribute)) for element in elements]


def test_boxes_grow_with_columns():
    small, middle, large = numbers(
        of_class(draw(silo("a", [2], [1]), silo("b", [4], [1]), silo("c", [8], [1])), "rect", "silo"), "width"
    )
    assert large - middle == pytest.approx(2 * (middle - small), abs=0.2)
    assert middle > small


def test_a_circle_s_area_is_its_rows():
    radii = numbers(of_class(draw(silo("a", [2], [400, 100, 1])), "circle", "client"), "r")
    assert radii[0] == 2 * radii[1]
    assert 0 < radii[2] < radii[1]


@pytest.mark.parametrize(
    ("clients", "circles", "more"), [(12, 12, []), (13, 8, ["… 5 more"]), (500, 8, ["… 492 more"])]
)
def test_many_clients_are_counted(clients, circles, more):
    drawing = draw(silo("a", [2], [3] * clients))
    assert len(of_class(drawing, "circle", "client")) == circles
    assert [text.text for text in of_class(drawing, "text", "more")] == more


@pytest.mark.parametrize("count", [1, 2, 5, 6, 14, 30, 40])
def test_everything_lies_inside_and_nothing_overlaps(count):
    drawing = draw(*(silo(f"silo{index}", [1 + index % 3 * 40], [5] * (1 + index)) for index in range(count)))
    width, height = (float(number) for number in drawing.get("viewBox").split()[2:])
    placed = []
    for line in drawing.findall("g"):
        top = float(line.get("transform").removesuffix(")").split()[1])
        for box in of_class(line, "rect", "silo"):
            x, y, w, h = (float(box.get(name)) for name in ("x", "y", "width", "height"))
            placed.append((x, x + w, top + y, top + y + h))
        for circle in of_class(line, "circle", "client"):
            x, y, r = (float(circle.get(name)) for name in ("cx", "cy", "r"))
            inside = [b for b in placed if b[0] < x - r and x + r < b[1] and b[2] < top + y - r and top + y + r < b[3]]
            assert len(inside) == 1
    assert len(placed) == min(count, 30)
    assert all(left >= 0 and right <= width and bottom <= height for left, right, _, bottom in placed)
    for index, a in enumerate(placed):
        for b in placed[:index]:
            assert a[0] >= b[1] or b[0] >= a[1] or a[2] >= b[3] or b[2] >= a[3]


def test_hubs_are_joined_unless_there_is_one():
    assert not of_class(draw(silo("a", [2], [1])), "path", "exchange")
    (rail,) = of_class(draw(silo("a", [2], [1]), silo("b", [2], [1])), "path", "exchange")
    assert rail.get("d").count("V") == 2
    wrapped = draw(*(silo(f"s{index}", [2], [1]) for index in range(6)))
    *rails, spine = of_class(wrapped, "path", "exchange")
    assert sum(rail.get("d").count("V") for rail in rails) == 6
    assert spine.get("d").startswith("M12 ")


def test_the_lines_of_a_box_keep_apart():
    drawing = draw(silo("a", [2], [3] * 500))
    heights = [max(numbers(of_class(drawing, "text", kind), "y")) for kind in ("rows", "more", "name")]
    assert min(b - a for a, b in pairwise(heights)) >= 14


def test_silos_beyond_the_last_one_drawn_are_counted():
    drawing = draw(*(silo(f"s{index}", [2], [1]) for index in range(37)))
    assert [text.text for text in of_class(drawing, "text", "more")] == ["… 7 more silos"]


def test_long_and_hostile_names():
    drawing = draw(silo("<b>" + "x" * 200, [2], [1]), silo("b", [28, 14], [1]))
    first, second = of_class(drawing, "text", "name")
    assert first.text.startswith("<b>xx")
    assert first.text.endswith("…")
    assert len(first.text) < 100
    titles = [title.text for title in drawing.iter("title")]
    assert f"<b>{'x' * 200}: 2 columns, 1 client, 1,376 parameters" in titles
    assert second.text == "b"
    assert "28 × 14 pixels" in [text.text for text in drawing.iter("text")]
