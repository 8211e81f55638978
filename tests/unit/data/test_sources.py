from bfn.data.sources import SOURCES


def test_every_set_has_a_package_and_recorded_sums():
    for name, sources in SOURCES.items():
        assert sources[0].kind == "web"
        assert any(source.kind != "web" and source.files for source in sources), name
        for source in sources:
            for recorded in [*source.archives.values(), *source.files.values()]:
                assert len(recorded) == 64
                assert int(recorded, 16)
