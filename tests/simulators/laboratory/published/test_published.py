from trainscout.simulators.laboratory.published.published import stored_coverage


def test_the_shipped_error_bars_say_how_often_they_held():
    coverage = stored_coverage()
    assert {"level", "n", "five_fold", "leave_one_source_out", "per_source"} <= set(coverage)
    assert 0 < coverage["five_fold"] < 1


def test_the_header_of_any_table_of_residuals(tmp_path):
    path = tmp_path / "residuals.csv"
    path.write_text("# coverage:\n#   level: 0.8\nid,source\na,b\n")
    assert stored_coverage(path) == {"level": 0.8}
