"""Loading, describing and binding: what a model is, and clear words for what it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper, numpy_helper

from pytest_portability import models, onnx_graph
from pytest_portability.errors import InputsError, ModelError
from pytest_portability.models import ModelFacts, TensorSpec


def describe(made: onnx.ModelProto) -> ModelFacts:
    """Facts of a model in memory."""
    return models.describe(models.load(made))


class TestLoad:
    """A model comes from a file, a proto, a module or a factory."""

    def test_a_file_is_loaded_and_its_path_kept(self, tmp_path: Path) -> None:
        """Runtimes read the file themselves."""
        path = onnx_models.save(onnx_models.mlp(), tmp_path / "mlp.onnx")
        for source in (path, str(path)):
            model = models.load(source)
            assert (model.kind, model.path) == ("onnx", path)

    def test_a_proto_is_loaded_as_it_is(self) -> None:
        """No copy and no path."""
        proto = onnx_models.mlp()
        model = models.load(proto)
        assert model.value is proto
        assert model.path is None

    def test_a_factory_is_called_once(self) -> None:
        """A factory makes the model in the process that needs it."""
        calls: list[int] = []

        def factory() -> onnx.ModelProto:
            calls.append(1)
            return onnx_models.mlp()

        assert models.load(factory).kind == "onnx"
        assert calls == [1]

    def test_a_factory_of_a_factory_is_refused(self) -> None:
        """One level is enough; two are a mistake."""
        with pytest.raises(ModelError, match=r"returned another callable; it must return a path"):
            models.load(lambda: onnx_models.mlp)

    def test_a_factory_that_raises_is_named_with_its_line(self) -> None:
        """Whatever it raises, and wherever below it: the line is the user's own."""

        def ends() -> None:
            sys.exit(3)

        def wrong() -> object:
            return np.linalg.inv(np.zeros((2, 2)))

        def needs(size: int) -> int:
            return size

        for factory, words in (
            (ends, r"net: the factory ends raised SystemExit: 3 \(in ends, line \d+\)"),
            (wrong, r"raised LinAlgError: Singular matrix \(in wrong, line \d+\)"),
            (needs, r"the factory needs raised TypeError: .*missing 1 required.*'size'$"),
        ):
            with pytest.raises(ModelError, match=words):
                models.load(factory, name="net")

    def test_a_missing_file_is_named_with_the_folder(self, tmp_path: Path) -> None:
        """Relative paths are the usual reason."""
        with pytest.raises(ModelError) as caught:
            models.load("nowhere/net.onnx", name="net")
        assert str(caught.value).startswith("net: asked to load 'nowhere/net.onnx', found no such")
        assert repr(str(Path.cwd())) in str(caught.value)
        with pytest.raises(ModelError, match=r"found a directory"):
            models.load(tmp_path)

    @pytest.mark.parametrize("keep", [0.5, 0.02, 0.0])
    def test_a_truncated_file_is_refused_with_its_size(self, tmp_path: Path, keep: float) -> None:
        """A download that broke off."""
        data = onnx_models.mlp().SerializeToString()
        path = tmp_path / "cut.onnx"
        path.write_bytes(data[: int(len(data) * keep)])
        with pytest.raises(ModelError, match=r"cut\.onnx.*\d+ bytes.*truncated or not an ONNX"):
            models.load(path)

    def test_another_kind_of_file_is_refused(self, tmp_path: Path) -> None:
        """A text file is no model."""
        path = tmp_path / "notes.onnx"
        path.write_text("this is not a model at all")
        with pytest.raises(ModelError, match=r"notes\.onnx.*truncated or not an ONNX file"):
            models.load(path)

    def test_a_git_lfs_pointer_says_what_to_run(self, tmp_path: Path) -> None:
        """The commonest broken model in a checkout."""
        path = tmp_path / "net.onnx"
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        with pytest.raises(ModelError, match=r"Git LFS pointer.*run git lfs pull"):
            models.load(path)

    def test_an_op_set_from_the_future_names_the_newest_known(self) -> None:
        """What to install, or what to export with."""
        proto = onnx_models.mlp()
        proto.opset_import[0].version = 99
        newest = onnx.defs.onnx_opset_version()
        with pytest.raises(
            ModelError, match=rf"op-set 99;.*up to {newest}.*opset_version={newest}"
        ):
            models.load(proto)

    def test_missing_external_data_is_named(self, tmp_path: Path) -> None:
        """Half of the model was copied."""
        path = onnx_models.save_external(onnx_models.mlp(), tmp_path / "net.onnx")
        (tmp_path / "net.bin").unlink()
        with pytest.raises(ModelError, match=r"tensor '\w+' keeps its data.*'net.bin'.*copy it"):
            models.load(path)

    def test_cut_external_data_is_found_before_anything_runs(self, tmp_path: Path) -> None:
        """The other file broke off."""
        path = onnx_models.save_external(onnx_models.mlp(), tmp_path / "net.onnx")
        data = tmp_path / "net.bin"
        data.write_bytes(data.read_bytes()[:100])
        with pytest.raises(ModelError, match=r"has 100 bytes where .* are needed"):
            models.load(path)

    def test_external_data_outside_the_folder_is_refused(self, tmp_path: Path) -> None:
        """A model file must not read what lies elsewhere."""
        folder = tmp_path / "models"
        folder.mkdir()
        path = onnx_models.save_external(onnx_models.mlp(), folder / "net.onnx")
        (folder / "net.bin").rename(tmp_path / "net.bin")
        proto = onnx.load(str(path), load_external_data=False)
        for weight in proto.graph.initializer:
            weight.external_data[0].value = "../net.bin"
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match=r"outside the model's folder"):
            models.load(path)

    def test_external_data_without_a_path_says_to_give_the_path(self, tmp_path: Path) -> None:
        """The proto alone does not know where it came from."""
        path = onnx_models.save_external(onnx_models.mlp(), tmp_path / "net.onnx")
        proto = onnx.load(str(path), load_external_data=False)
        with pytest.raises(ModelError, match=r"came without a path; give the .onnx file's path"):
            models.load(proto)

    @pytest.mark.parametrize("wrong", [3, None, b"onnx", ["net.onnx"]])
    def test_other_objects_are_refused_with_the_accepted_ones(self, wrong: object) -> None:
        """The message lists what a model may be."""
        with pytest.raises(ModelError, match=r"a model is a path of an \.onnx file.*a callable"):
            models.load(wrong)

    def test_a_class_without_arguments_is_a_factory(self) -> None:
        """Of a torch module most of all; one that wants arguments says so itself."""

        class Net:
            def __new__(cls) -> Any:
                return onnx_models.mlp()

        class Wide:
            def __init__(self, width: int) -> None:
                self.width = width

        assert models.load(Net).kind == "onnx"
        with pytest.raises(ModelError, match=r"the factory Wide raised TypeError.*'width'"):
            models.load(Wide)


class TestDescribe:
    """Facts do not depend on how a file is written."""

    def test_facts_of_an_onnx_model(self) -> None:
        """Framework, op-set, weights and signature."""
        facts = describe(onnx_models.mlp())
        dims = ("batch", 4, 64)
        assert facts.framework == "pytorch 2.13.0"
        assert facts.opset == {"": 20}
        assert facts.parameters == 2 * (64 * 64 + 64)
        assert facts.inputs == (TensorSpec(name="x", dtype="float32", shape=dims),)
        assert facts.outputs == (TensorSpec(name="y", dtype="float32", shape=dims),)
        assert set(facts.tensors) == {"w0", "b0", "w1", "b1"}
        assert all(len(digest) == 8 for digest in facts.tensors.values())

    def test_initialisers_listed_as_inputs_are_not_required(self) -> None:
        """Old exporters list every weight among the inputs."""
        made = onnx_models.mlp()
        made.graph.input.append(helper.make_tensor_value_info("w0", TensorProto.FLOAT, [64, 64]))
        assert [spec.name for spec in describe(made).inputs] == ["x"]
        assert describe(made).graph == describe(onnx_models.mlp()).graph

    @pytest.mark.parametrize(
        "change", [onnx_models.renamed, onnx_models.reordered, onnx_models.annotated]
    )
    @pytest.mark.parametrize(
        "make",
        [onnx_models.mlp, onnx_models.conv, onnx_models.branching, onnx_models.quantised],
    )
    def test_the_graph_hash_is_blind_to_spelling(
        self, make: type[onnx.ModelProto], change: type[onnx.ModelProto]
    ) -> None:
        """Names, order and metadata are not the model."""
        before, after = describe(make()), describe(change(make()))
        assert after.graph == before.graph
        assert after.weights == before.weights

    def test_external_data_change_nothing(self, tmp_path: Path) -> None:
        """Where the bytes lie is not the model."""
        path = onnx_models.save_external(onnx_models.mlp(), tmp_path / "net.onnx")
        outside, inside = models.describe(models.load(path)), describe(onnx_models.mlp())
        assert (tmp_path / "net.bin").is_file()
        assert outside == inside

    def test_raw_and_typed_storage_are_the_same_weights(self) -> None:
        """``raw_data`` and ``float_data`` hold the same numbers."""
        made = onnx_models.mlp()
        for weight in made.graph.initializer:
            values = numpy_helper.to_array(weight).ravel()
            weight.ClearField("raw_data")
            weight.float_data.extend(values.tolist())
        assert describe(made).weights == describe(onnx_models.mlp()).weights

    def test_other_weights_change_the_weights_hash_alone(self) -> None:
        """And the digests name the tensors."""
        before, after = describe(onnx_models.mlp(seed=0)), describe(onnx_models.mlp(seed=1))
        assert after.graph == before.graph
        assert after.weights != before.weights
        assert after.tensors["w0"] != before.tensors["w0"]

    def test_an_attribute_changes_the_graph_hash_alone(self) -> None:
        """Gelu's approximation is part of the meaning."""
        made = onnx_models.mlp()
        made.graph.node[2].attribute.append(helper.make_attribute("approximate", "tanh"))
        before, after = describe(onnx_models.mlp()), describe(made)
        assert after.graph != before.graph
        assert after.weights == before.weights

    def test_structure_changes_the_graph_hash(self) -> None:
        """A node fewer, inputs swapped, another branch, a small constant."""
        swapped, branch = onnx_models.not_finite(), onnx_models.branching()
        swapped.graph.node[2].input[:] = ["one", "n"]
        branch.graph.node[2].attribute[0].g.node[0].op_type = "Sigmoid"
        pairs = [
            (onnx_models.mlp(1), onnx_models.mlp(2)),
            (onnx_models.not_finite(), swapped),
            (onnx_models.branching(), branch),
        ]
        for one, two in pairs:
            assert describe(one).graph != describe(two).graph

    def test_a_corrupt_weight_is_named(self, tmp_path: Path) -> None:
        """Its dims do not fit its bytes."""
        made = onnx_models.mlp()
        made.graph.initializer[0].dims[0] = 63
        path = onnx_models.save(made, tmp_path / "mlp.onnx")
        words = r"mlp\.onnx: weight 'w0' is corrupt \(dims \[63, 64\], ValueError: cannot reshape"
        with pytest.raises(ModelError, match=words):
            models.describe(models.Model(kind="onnx", value=made, path=path))

    def test_dead_nodes_do_not_count(self) -> None:
        """What no output is computed from is not the model."""
        made = onnx_models.mlp()
        made.graph.node.append(helper.make_node("Relu", ["x"], ["unused"]))
        assert describe(made).graph == describe(onnx_models.mlp()).graph

    def test_scales_and_zero_points_are_not_weights(self) -> None:
        """Another calibration is a change of quantisation, not of weights."""
        made = onnx_models.quantised()
        scale = next(t for t in made.graph.initializer if t.name == "s")
        scale.CopyFrom(numpy_helper.from_array(np.array(np.float32(0.03)), "s"))
        before, after = describe(onnx_models.quantised()), describe(made)
        assert after.weights == before.weights
        assert after.graph != before.graph
        assert set(before.tensors) == {"w8"}

    def test_axes_and_scalars_belong_to_the_graph(self) -> None:
        """They say what is computed; a model that was only retrained has the same."""

        def reduced(axes: list[int], epsilon: float) -> onnx.ModelProto:
            return onnx_models.model(
                [
                    helper.make_node("ReduceSum", ["x", "axes"], ["s"]),
                    helper.make_node("Add", ["s", "epsilon"], ["y"]),
                ],
                {"x": [2, 3, 4]},
                {"y": [1, 3, 4]},
                [
                    onnx_models.constant("axes", np.array(axes, np.int64)),
                    onnx_models.constant("epsilon", np.array(epsilon, np.float32)),
                ],
            )

        one = describe(reduced([0], 1e-5))
        for other in (reduced([1], 1e-5), reduced([0], 1e-3)):
            assert describe(other).graph != one.graph
            assert describe(other).weights == one.weights
        assert one.tensors == {}

    def test_quantised_models_are_known_by_their_nodes(self) -> None:
        """The precision int8 is for them."""
        assert onnx_graph.quantised(onnx_models.quantised())
        assert not onnx_graph.quantised(onnx_models.mlp())

    def test_strings_and_half_precision_can_be_hashed(self) -> None:
        """Every ONNX type has bytes."""
        made = onnx_models.text()
        made.graph.initializer.append(
            helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"bc"])
        )
        made.graph.initializer.append(
            helper.make_tensor("half", TensorProto.BFLOAT16, [2], [1.0, 2.0])
        )
        facts = describe(made)
        assert set(facts.tensors) == {"words", "half"}
        assert facts.inputs[0].dtype == "object"

    def test_op_types_count_subgraphs_too(self) -> None:
        """Both branches of an ``If``."""
        counts = onnx_graph.op_types(onnx_models.branching())
        assert counts == {"Cast": 1, "If": 1, "Neg": 1, "ReduceSum": 1, "Relu": 1}


class TestBind:
    """The user's arrays become the model's inputs, or a message says why not."""

    facts = describe(onnx_models.mlp())
    x = np.zeros((2, 4, 64), np.float32)

    def test_a_mapping_and_a_sequence_are_the_same(self) -> None:
        """Arrays are not copied."""
        for given in ({"x": self.x}, [self.x], (self.x,)):
            bound = models.bind(given, self.facts, 2)
            assert list(bound) == ["x"]
            assert bound["x"] is self.x

    def test_another_byte_order_becomes_the_machine_s(self) -> None:
        """Runtimes would read the bytes as they are."""
        x = self.x + 1
        bound = models.bind([x.astype(x.dtype.newbyteorder("S"))], self.facts, 2)["x"]
        assert bound.dtype.isnative
        assert np.array_equal(bound, x)

    def test_a_mapping_is_put_into_the_model_s_order(self) -> None:
        """Whatever order the user wrote."""
        facts = describe(onnx_models.lstm())
        state = np.zeros((1, 2, 8), np.float32)
        given = {"c": state, "h": state, "x": np.zeros((7, 2, 5), np.float32)}
        assert list(models.bind(given, facts, 2)) == ["x", "h", "c"]

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"y": x}, r"the model takes 'x'; missing 'x'; unknown 'y'"),
            ({"x": x, "mask": x}, r"the model takes 'x'; unknown 'mask'"),
            ({}, r"missing 'x'"),
            ([x, x], r"the model takes 'x'; given were 2 arrays"),
            ([], r"given were 0 arrays"),
            (x, r"given was one array of shape \[2, 4, 64\]; put it into a list"),
            ("x", r"a mapping from name to NumPy array or a sequence.*given was str"),
            ([[1.0, 2.0]], r"input 'x' must be a NumPy array; given was list: use numpy\.asarray"),
            (
                {"x": x.astype(np.float64)},
                r"must be float32; given was float64.*astype\('float32'\)",
            ),
            ({"x": x[0]}, r"must have shape \[batch, 4, 64\]; given was \[4, 64\]"),
            ({"x": x[:, :3]}, r"must have shape \[batch, 4, 64\]; given was \[2, 3, 64\]"),
        ],
    )
    def test_what_does_not_fit_is_named(self, given: object, words: str) -> None:
        """Asked, found, valid."""
        with pytest.raises(InputsError, match=words):
            models.bind(given, self.facts, 2)  # type: ignore[arg-type]

    def test_another_leading_dimension_than_the_item_s_batch_is_refused(self) -> None:
        """Or the throughput would be that of another batch."""
        words = r"batch is 8, and no input has that many samples: 'x' \[2, 4, 64\]; give.*callable"
        with pytest.raises(InputsError, match=words):
            models.bind([self.x], self.facts, 8)

    def test_without_a_batch_any_size_fits(self) -> None:
        """A metric's evaluation set."""
        assert models.bind([self.x], self.facts, None)["x"] is self.x

    def test_the_batch_may_be_an_axis_that_is_named_so(self) -> None:
        """Time-major input and recurrent state."""
        facts = describe(onnx_models.lstm())
        state = np.zeros((1, 3, 8), np.float32)
        given = [np.zeros((7, 3, 5), np.float32), state, state]
        assert models.bind(given, facts, 3)
        with pytest.raises(InputsError, match=r"this item's batch is 7"):
            models.bind(given, facts, 7)

    def test_scalars_beside_the_batch_are_fine(self) -> None:
        """A sample rate, as a zero-dimensional array or a NumPy scalar."""
        specs = (
            TensorSpec(name="audio", dtype="float32", shape=(None, 512)),
            TensorSpec(name="rate", dtype="int64", shape=()),
        )
        facts = ModelFacts(
            kind="onnx",
            framework="",
            opset={},
            weights="",
            tensors={},
            graph="",
            parameters=0,
            inputs=specs,
        )
        audio = np.zeros((4, 512), np.float32)
        for rate in (np.array(16000), np.int64(16000)):
            assert models.bind([audio, rate], facts, 4)["rate"].shape == ()  # type: ignore[list-item]

    def test_a_model_of_fixed_dimensions_says_so(self) -> None:
        """Its batch cannot be another one."""
        made = onnx_models.mlp()
        made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        facts = describe(made)
        one = self.x[:1]
        assert models.bind([one], facts, 1)
        with pytest.raises(
            InputsError, match=r"batch is 8.*dimensions are all fixed.*set batches="
        ):
            models.bind([one], facts, 8)

    def test_strings_of_any_numpy_kind_fit(self) -> None:
        """Fixed-width and object arrays."""
        facts = describe(onnx_models.text())
        for words in (np.array(["a", "bc"]), np.array(["a", "bc"], dtype=object)):
            assert models.bind([words], facts, 2)


class TestTorch:
    """A module's facts come from its state, its input names from ``forward``."""

    @staticmethod
    def net() -> object:
        """A linear layer with a buffer and an optional second input."""
        torch = pytest.importorskip("torch")

        class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(3, 2).to(torch.bfloat16)
                self.register_buffer("steps", torch.tensor(4))

            def forward(self, x: object, mask: object = None) -> object:
                return x, mask

        return Net()

    def test_facts_of_a_module(self) -> None:
        """Parameters and buffers of any dtype; inputs are unknown."""
        module = self.net()
        model = models.load(module)
        facts = models.describe(model)
        assert model.value is module
        assert facts.framework.startswith("pytorch 2.")
        assert "+" not in facts.framework
        assert set(facts.tensors) == {"layer.weight", "layer.bias", "steps"}
        assert facts.parameters == 3 * 2 + 2 + 1
        assert (facts.inputs, facts.outputs, facts.graph) == ((), (), "")

    def test_the_mode_is_left_and_noted(self) -> None:
        """A module in training mode is a finding."""
        module = self.net()
        model = models.load(module)
        assert model.value.training
        assert models.describe(model).notes == {"mode": "training"}
        assert models.describe(models.load(model.value.eval())).notes == {}

    def test_weights_on_the_meta_device_are_refused(self) -> None:
        """They have no data."""
        module = models.load(self.net()).value.to("meta")
        with pytest.raises(
            ModelError, match=r"is on torch's meta device and has no data; load the weights"
        ):
            models.describe(models.load(module))

    def test_names_come_from_forward(self) -> None:
        """A sequence by parameters, a mapping as keyword arguments."""
        model = models.load(self.net())
        facts = models.describe(model)
        x = np.zeros((2, 3), np.float32)
        assert list(models.bind([x], facts, 2, model.value)) == ["x"]
        assert list(models.bind([x, x], facts, 2, model.value)) == ["x", "mask"]
        assert list(models.bind({"mask": x, "x": x}, facts, 2, model.value)) == ["mask", "x"]
        with pytest.raises(InputsError, match=r"forward takes 'x', 'mask'; given were 3 arrays"):
            models.bind([x, x, x], facts, 2, model.value)
        with pytest.raises(InputsError, match=r"missing 'x'; unknown 'y'"):
            models.bind({"y": x}, facts, 2, model.value)
        with pytest.raises(InputsError, match=r"this item's batch is 5"):
            models.bind([x], facts, 5, model.value)

    def test_variadic_inputs_are_named_by_position(self) -> None:
        """``forward(self, *inputs)`` has no names to give."""
        torch = pytest.importorskip("torch")
        facts = models.describe(models.load(torch.nn.Identity()))

        class Sum(torch.nn.Module):  # type: ignore[misc,name-defined]
            def forward(self, first: object, *rest: object) -> object:
                return first, rest

        x = np.zeros((2, 3), np.float32)
        assert list(models.bind([x, x, x], facts, 2, Sum())) == ["0", "1", "2"]
        assert list(models.bind([x], facts, 2, Sum())) == ["first"]


def test_the_digest_depends_on_names_types_shapes_and_bytes() -> None:
    """Equal inputs hash equally, all others do not."""
    base = {"x": np.arange(4, dtype=np.float32)}
    same = {"x": np.arange(8, dtype=np.float32)[:4].copy()}
    others: list[models.Arrays] = [
        {"y": base["x"]},
        {"x": base["x"].astype(np.float64)},
        {"x": base["x"].reshape(2, 2)},
        {"x": base["x"] + 1},
        {"x": np.array(["0", "1"])},
    ]
    assert models.digest(same) == models.digest(base)
    assert models.digest({"x": np.arange(8, dtype=np.float32)[::2]}) != models.digest(base)
    assert len({models.digest(arrays) for arrays in [base, *others]}) == 6


def test_onnx_models_need_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking whether something is a module does not import torch."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert models.load(onnx_models.mlp()).kind == "onnx"
