"""The pictures of the site: their twins for dark pages, their texts, their numbers, and the cards of the gallery."""

import base64
import importlib
import io
import re
import types
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite._support.colours import FAINT, INK, PALETTE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.sources


@pytest.fixture
def extension(monkeypatch):
    """Return a function that imports an extension of the site."""
    for package in ("sphinx", "PIL", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    return importlib.import_module


def numbers(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def luminance(rgb):
    """WCAG 2.2's relative luminance."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(a, b):
    low, high = sorted([luminance(numbers(a)), luminance(numbers(b))])
    return (high + 0.05) / (low + 0.05)


def hue(rgb):
    r, g, b = rgb
    return np.angle(r + g * np.exp(2j * np.pi / 3) + b * np.exp(-2j * np.pi / 3))


# ---- twins ----------------------------------------------------------------------------------------------------------


def test_colours_on_a_dark_page_are_readable_and_keep_their_hue(extension):
    dark = extension("dark")
    twins = [dark.darken_colour(colour) for colour in PALETTE]
    assert all(contrast(twin, dark.GROUND) > 5 for twin in twins)
    assert contrast(dark.darken_colour(INK), dark.GROUND) > 10
    assert 1.2 < contrast(dark.darken_colour(FAINT), dark.GROUND) < 3
    assert dark.darken_colour("#ffffff") == dark.darken_colour("#FFF") == dark.GROUND
    for colour, twin in zip(PALETTE[:-1], twins, strict=False):
        turn = np.angle(np.exp(1j * (hue(numbers(colour)) - hue(numbers(twin)))))
        assert abs(turn) < 0.35, (colour, twin)
    distances = [abs(numbers(a) - numbers(b)).max() for i, a in enumerate(twins) for b in twins[:i]]
    assert min(distances) > 0.12


def test_regions_stay_darker_than_their_points(extension):
    dark = extension("dark")
    for colour in PALETTE[:4]:
        tint = 1 - cl.plots.TINT * (1 - numbers(colour))
        assert luminance(dark.darken(tint)) < 0.5 * luminance(dark.darken(numbers(colour)))


def test_letters_can_be_read_on_the_darkest_ground_of_a_text(extension):
    dark = extension("dark")
    ground = read_png(dark.darken_image(png(np.uint8(255 * numbers(PALETTE[1]).reshape(1, 1, 3))), is_ground=True))
    assert contrast(dark.darken_colour(INK), "#" + bytes(ground[0, 0]).hex()) > 4


def png(pixels):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def read_png(content):
    from PIL import Image

    return np.array(Image.open(io.BytesIO(content)))


def test_the_twin_of_an_image_keeps_its_size_and_what_is_transparent(extension):
    dark = extension("dark")
    pixels = np.full((3, 5, 4), 255, np.uint8)
    pixels[1, 2] = 0, 0, 0, 40
    twin = read_png(dark.darken_image(png(pixels)))
    assert twin.shape == pixels.shape
    np.testing.assert_array_equal(twin[..., 3], pixels[..., 3])
    assert twin[0, 0, :3].max() < 40
    assert twin[1, 2, :3].min() > 230
    assert read_png(dark.darken_image(png(pixels[..., 0]))).max() <= 255  # a grey image


def test_the_twin_of_a_drawing_has_other_colours_and_the_same_shapes_links_and_photos(extension):
    dark = extension("dark")
    image = base64.b64encode(png(np.zeros((2, 2, 3), np.uint8))).decode()
    drawing = (
        '<svg xmlns="http://www.w3.org/2000/svg"><path id="fade12" style="fill: #333333; stroke:#fff" d="M0 0"/>'
        '<use href="#fade12"/><g clip-path="url(#abc123)"/>'
        f'<image href="data:image/png;base64,{image}"/><image href="data:image/png;base64,{image}" id="photo"/></svg>'
    )
    twin = dark.darken_svg(drawing)
    assert "#333333" not in twin
    assert f"stroke:{dark.GROUND}" in twin
    assert 'href="#fade12"' in twin
    assert "url(#abc123)" in twin
    assert f'<image href="data:image/png;base64,{image}" id="photo"/>' in twin
    assert twin.count(image) == 1
    assert re.match(r'<svg fill="#f[\da-f]{5}" ', twin)  # what has no colour is not black


def make_gif(colours):
    """Return a GIF file with a frame for each list of colours. The frames after the first have tables of their own."""
    from PIL import Image

    file, frames = io.BytesIO(), []
    for row in colours:
        frames.append(Image.new("P", (len(row), 1)))
        frames[-1].putpalette([value for colour in row for value in colour])
        frames[-1].putdata(range(len(row)))
    frames[0].save(file, format="GIF", save_all=True, append_images=frames[1:], disposal=1)
    return file.getvalue()


def test_the_twin_of_a_film_has_other_colours_in_each_frame(extension):
    from PIL import Image

    dark = extension("dark")
    colours = [[(255, 255, 255), (0, 0, 0)], [(255, 255, 255), (0, 114, 178)], [(213, 94, 0), (240, 240, 240)]]
    gif = make_gif(colours)
    twin = Image.open(io.BytesIO(dark.darken_gif(gif)))
    assert twin.n_frames == 3
    for i, row in enumerate(colours):
        twin.seek(i)
        expected = np.round(255 * dark.darken(np.array(row) / 255))
        np.testing.assert_array_equal(np.array(twin.convert("RGB"))[0], expected)


def test_a_page_shows_one_of_a_film_and_its_twin_and_each_has_its_own_slider(extension):
    dark = extension("dark")
    x, y = cl.datasets.spiral(points_per_class=10, seed=0)
    model = cl.MLP(2, [3, 3], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    film = cl.plots.film(model, x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=2, frames=2, verbose=0)
    text = film._repr_html_()
    both = dark.darken_film(text)
    light, twin = re.findall(r'<div class="only-(?:light|dark)">(.*?)</script>', both, re.DOTALL)
    names = [re.search(r'<div id="(film-[\w-]+)"', part)[1] for part in (light, twin)]
    assert names == [names[0], f"{names[0]}-dark"]
    assert f'getElementById("{names[1]}")' in twin
    assert f'const film = window["settings-{names[0]}"] = {{' in light
    assert f'const film = {{ ...window["settings-{names[0]}"] }};' in twin

    table, other_table = re.search(r'picture\.replace\("(.*?)", "(.*?)"\)', twin).groups()
    pictures = re.findall(r"iVBORw[\w+/=]+", light)
    assert len(pictures) == 3  # the one that is seen first, and two frames
    assert re.findall(r"iVBORw[\w+/=]+", twin) == [pictures[0].replace(table, other_table)]
    for picture in pictures:
        pixels, others = (as_rgb(base64.b64decode(p)) for p in (picture, picture.replace(table, other_table)))
        np.testing.assert_array_equal(others, np.round(255 * dark.darken(pixels / 255)))

    with pytest.raises(ValueError, match="same table of colours"):
        dark.darken_film(text.replace(table, other_table, 1))


def as_rgb(content):
    from PIL import Image

    return np.array(Image.open(io.BytesIO(content)).convert("RGB"))


def test_each_picture_of_a_page_gets_a_twin(extension, tmp_path):
    dark = extension("dark")
    from docutils import nodes
    from docutils.utils import new_document

    (tmp_path / "drawn.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    (tmp_path / "film.gif").write_bytes(make_gif([[(255, 255, 255)], [(0, 0, 0)]]))
    (tmp_path / "photo.jpg").write_bytes(b"")
    for name in ("page.png", "page-dark.png"):
        (tmp_path / name).write_bytes(png(np.zeros((2, 2, 3), np.uint8)))
    document = new_document("page")
    document += [nodes.image(uri=name, alt=name) for name in ("drawn.svg", "film.gif", "photo.jpg", "page.png")]
    app = types.SimpleNamespace(srcdir=tmp_path, doctreedir=tmp_path / "build" / "doctrees")
    app.env = types.SimpleNamespace(relfn2path=lambda uri: (uri, str(tmp_path / uri)))
    dark.add_twins(app, document)
    shown = [(image["uri"], image["classes"]) for image in document.findall(nodes.image)]
    assert [uri for uri, classes in shown if "only-light" in classes] == ["drawn.svg", "film.gif", "page.png"]
    made, film, own = [uri for uri, classes in shown if "only-dark" in classes]
    assert Path(tmp_path, made[1:]).read_text().startswith("<svg fill=")
    assert as_rgb(Path(tmp_path, film[1:]).read_bytes()).max() < 40
    assert own == "/page-dark.png"
    assert ("photo.jpg", ["as-is"]) in shown
    assert {image["alt"] for image in document.findall(nodes.image)} == {
        "drawn.svg",
        "film.gif",
        "photo.jpg",
        "page.png",
    }


def test_every_picture_of_a_page_has_a_text():
    shown = re.compile(
        r"plt\.show\(\)|^cl\.trace\(|^program\.show\(\)|^history\n|^drawing\n|^picture\n|^\w+\.plot\(|^explanation\."
        r"(summary|dependence|plot)|^cl\.plots\.(?!film)",
        re.MULTILINE,
    )
    count = 0
    for page in [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]:
        text = page.read_text(encoding="utf-8")
        for options, source in re.findall(
            r"^```\{code-cell\}\n((?::[^\n]*\n)*)(.*?)^```$", text, re.DOTALL | re.MULTILINE
        ):
            if shown.search(source):
                count += 1
                assert re.search(r'image: \{alt: "[^"]{20,}"\}', options), (page.name, source)
        assert not re.search(r"!\[\s*\]\(", text), page.name
    assert count > 20


# ---- sizes ----------------------------------------------------------------------------------------------------------


def test_each_picture_has_the_width_and_height_of_its_file(extension, tmp_path):
    sizes = extension("sizes")
    (tmp_path / "pictures").mkdir()
    for name, tag in {
        "points.svg": '<svg xmlns="" width="72pt" height="36pt" viewBox="0 0 72 36">',
        "pixels.svg": '<svg height="20" width="30">',
        "box.svg": '<?xml version="1.0"?><svg stroke-width="9" viewBox="0 0 240 150">',
    }.items():
        (tmp_path / "pictures" / name).write_text(f"{tag}</svg>")
    (tmp_path / "pictures" / "a b.png").write_bytes(png(np.zeros((3, 5, 3), np.uint8)))

    def complete(tag):
        return sizes.add_sizes(f"<p>{tag}</p>", tmp_path)[3:-4]

    assert complete('<img alt="A" src="pictures/points.svg" />') == (
        '<img width="96" height="48" alt="A" src="pictures/points.svg" />'
    )
    assert 'width="30" height="20"' in complete('<img src="pictures/pixels.svg">')
    assert 'width="240" height="150" style="width: 100%"' in complete('<img src="pictures/box.svg">')
    assert 'width="5" height="3"' in complete('<img src="pictures/a%20b.png">')
    for tag in ('<img src="data:image/png;base64,AA">', '<img src="https://a/b.png">', '<img width="9" src="c.png">'):
        assert complete(tag) == tag


def test_the_style_sheet_keeps_the_ratio_of_a_picture_that_is_shown_smaller():
    style = (DOCS / "_static" / "caffelite.css").read_text(encoding="utf-8")
    rule = re.search(r"\.sidebar-logo,\n\.content img,[^{]*\{([^}]*)\}", style)[1]
    assert "max-width: 100%" in rule
    assert "height: auto" in rule


def test_the_answers_of_a_quiz_are_open_on_paper():
    style = (DOCS / "_static" / "caffelite.css").read_text(encoding="utf-8")
    assert re.search(r"\.answers::details-content \{\s*content-visibility: visible;", style.split("@media print")[1])
    assert (DOCS / "lesson-plans.md").read_text(encoding="utf-8").count('<details class="answers">') == 2


# ---- drawings -------------------------------------------------------------------------------------------------------


def read_numbers(drawing, kind):
    found = re.findall(rf'<text class="{kind}"[^>]*>([^<]+)<', drawing)
    values = np.array([float(text.replace("−", "-")) for text in found], np.float32)
    side = round(len(values) ** 0.5)
    return values.reshape(side, side)


def test_the_convolution_in_the_drawing_has_the_numbers_that_conv2d_has():
    drawing = (DOCS / "_static" / "convolution.svg").read_text(encoding="utf-8")
    image, weights, output = (read_numbers(drawing, kind) for kind in ("image", "filter", "output"))
    convolution = cl.Conv2d(1, 1, 3, bias=False)
    convolution.weight.data = weights[None, None]
    np.testing.assert_array_equal(convolution(image[None, None]).numpy()[0, 0], output)
    sums = re.findall(r'<text class="sum"[^>]*>(.*?) = (.*?)<', drawing)
    values = [eval(left.replace("·", "*").replace("−", "-")) for left, _ in sums]
    assert values == output.ravel().tolist()
    assert "prefers-reduced-motion" in drawing


def test_the_map_of_the_course_has_the_lessons_and_minutes_of_its_table():
    table = (DOCS / "teaching.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:(\d)\. )?([A-Z][\w ,]*?)( \(optional\))? \| (\d+) \|", table, re.MULTILINE)
    drawing = (DOCS / "_static" / "course.svg").read_text(encoding="utf-8")
    boxes = re.findall(r"<rect([^>]*)/><text[^>]*>(?:(\d) )?([^<]*)</text><text[^>]*>(\d+) minutes<", drawing)
    assert len(rows) == 8
    assert sorted(rows) == sorted((n, name, " (optional)" * ("dash" in box), time) for box, n, name, time in boxes)


# ---- the gallery ----------------------------------------------------------------------------------------------------


def test_every_card_of_the_gallery_has_a_text_and_crops_within_its_picture(extension):
    gallery = extension("gallery")
    for example in (example for group in gallery.GROUPS.values() for example in group):
        assert len(example.alt) > 15, example.name
        left, top, right, bottom = example.crop
        assert 0 <= left < right <= 1
        assert 0 <= top < bottom <= 1


def test_a_card_shows_a_part_of_a_drawing_or_of_an_image(extension, tmp_path):
    gallery = extension("gallery")
    (tmp_path / "a.svg").write_text('<svg height="100pt" viewBox="0 10 200 100" width="200pt"><path d="M0 0"/></svg>')
    gallery.crop(tmp_path / "a.svg", (0.25, 0.5, 0.75, 1), tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_text() == (
        '<svg height="50" viewBox="50 60 100 50" width="100"><path d="M0 0"/></svg>'
    )
    (tmp_path / "a.png").write_bytes(png(np.arange(24, dtype=np.uint8).reshape(4, 6)))
    gallery.crop(tmp_path / "a.png", (0, 0.5, 0.5, 1), tmp_path / "b.png")
    np.testing.assert_array_equal(read_png((tmp_path / "b.png").read_bytes()), [[12, 13, 14], [18, 19, 20]])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ((0.0236, 1, 603), "24 ms · 603 weights"),
        ((1.26, 2, 9027), "1.3 s · 9,027 weights in 2 nets"),
        ((42.4, 0, 0), "42 s"),
        ((291, 1, 826112), "5 min · 826,112 weights"),
    ],
)
def test_a_card_says_how_long_and_how_large_in_words(extension, facts, words):
    assert extension("gallery").describe(*facts) == words


def test_a_net_within_another_net_is_not_counted_twice(extension):
    pictures = extension("pictures")
    inner, other = cl.MLP(2, [3, 1], seed=0), cl.MLP(2, [1], seed=0)
    outer = cl.Model([inner, cl.Linear(1, 1)], seed=0)
    found = pictures.collect_models([inner, outer, outer, {"other": other}, [inner], "text"])
    assert len(found) == 2
    assert outer in found
    assert other in found


def test_cells_of_ratios_are_coloured_by_their_numbers(extension):
    ratios = extension("ratios")
    from docutils import nodes
    from docutils.utils import new_document

    texts = ["2-100-3", "1 (1.8 µs)", "1,190", "50", "7.2", "2.4", "1.2", "–"]
    row = nodes.row("", *[nodes.entry("", nodes.paragraph("", text)) for text in texts])
    document = new_document("page")
    document += nodes.container("", row, classes=["ratios"])
    ratios.colour_cells(None, document)
    expected = [[], ["ratio-0"], ["ratio-4"], ["ratio-4"], ["ratio-3"], ["ratio-2"], ["ratio-1"], []]
    assert [cell["classes"] for cell in row.children] == expected


def test_no_text_of_a_drawing_begins_with_spaces_which_a_browser_drops():
    for path in (DOCS / "_static").glob("*.svg"):
        assert not re.search(r"<text[^>]*> ", path.read_text(encoding="utf-8")), path
