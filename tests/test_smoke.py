def test_smoke(cell):
    r = cell("--workers 2", "print('hi')\nreport(loss=1.0)\n5")
    assert r.value == 5
    assert cell.logs == {0: "hi\n", 1: "hi\n"}
