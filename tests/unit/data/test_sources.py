import torch

from bfn.data.loading import load
from bfn.data.sources import SOURCES, Download, Source


def test_every_set_has_a_home_then_a_package_and_recorded_sums():
    for name, source in SOURCES.items():
        # QM9's own home has 133,885 files of one molecule each: what everybody takes is the package's table.
        assert source.downloads[0].via == "web" or name == "qm9" or source.is_table or source.is_network
        # A network is a file of the package as it is: the sum of the package is its own.
        recorded = [download.files or source.is_network for download in source.downloads if download.via != "web"]
        assert any(recorded), name
        for download in source.downloads:
            for recorded in [*download.archives.values(), *download.files.values()]:
                assert len(recorded) == 64
                assert int(recorded, 16)


def test_a_new_set_is_one_entry(cache, clients, monkeypatch, recwarn):
    def convert(archives, folder, progress):
        (folder / "verses").write_bytes(archives["verses.gz"].read_bytes())

    (clients / "verses.gz").write_bytes(b"ab ba " * 10)
    sums = {"verses.gz": "7e5e2cc439040a661286d0e8df94adf801b2fa83048b8ba1f3197fa84355dcc6"}
    monkeypatch.setitem(SOURCES, "verses", Source((Download("npm", "verses@1", sums, convert, note="short"),)))
    text = load("verses", "all", progress=False)
    assert str(recwarn.pop().message) == "verses: short"
    assert text.note == "short"
    assert text.tokenizer.symbols == " ab"
    assert torch.equal(text[:6].to_classes(), torch.tensor([1, 2, 0, 2, 1, 0]))
