"""One option of this project, for the demonstration of a regression."""


def pytest_addoption(parser):
    parser.addoption(
        "--optimization-level",
        help="graph_optimization_level of ONNX Runtime, such as ORT_ENABLE_EXTENDED",
    )
