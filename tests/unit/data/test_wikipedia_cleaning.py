import io

import pytest

from bfn.data import text as wikipedia_cleaning


def clean(text: str) -> str:
    page = f'<page>\n<title>Dropped</title>\n<text xml:space="preserve">{text}</text>\n<id>7</id></page>'
    return b"".join(wikipedia_cleaning.clean(io.BytesIO(page.encode()))).decode()


@pytest.mark.parametrize(
    ("markup", "visible"),
    [
        ("Anarchism, in 1984!", " anarchism in one nine eight four"),
        ("&quot;c&quot; &amp;nbsp; d", " c d"),
        ("A&amp;B; c", " a c"),  # the recipe takes this for an entity
        ("'''bold''' == Head == * item", " bold head item"),
        ("[[target|shown]] and [[plain]]", " shown and plain"),
        ("[http://example.org/x shown link] end", " shown link end"),
        ("[[Image:Photo.jpg|thumb|left|120px|A caption]] x", " a caption x"),
        ("[[Category:Old things|*]] y", " old things y"),
        ("[[fr:Anarchisme]][[zh-min-nan:Foo]] z", " z"),
        ("{{icon}} a {| table |} b {one {two} three} c", " a b three c"),
        ("kept &lt;ref name=x&gt;gone&lt;/ref&gt; too &lt;br /&gt; end", " kept too end"),
        ("caf\u00e9 na\u00efve", " caf na ve"),
        ("#REDIRECT [[Elsewhere]]", ""),
    ],
)
def test_recipe_keeps_what_a_reader_sees(markup, visible):
    assert clean(markup) == visible


@pytest.mark.parametrize("block", [1, 2, 7, 1 << 20])
def test_only_text_elements_are_kept_whatever_the_size_of_the_blocks(monkeypatch, block):
    dump = b'<a>no</a><text a="">Some [[link|words]] 3</text>\n<text x="">#redirect no</text><text b="">more'
    monkeypatch.setattr(wikipedia_cleaning, "_BLOCK", block)
    assert b"".join(wikipedia_cleaning.clean(io.BytesIO(dump))) == b" some words three more"
