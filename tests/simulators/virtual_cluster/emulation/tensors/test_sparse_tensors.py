"""Sparse gradients: as long as torch's own, and what the device does with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate, emulate_text
from trainscout.simulators.virtual_cluster.traces.events import Op, Violation
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower

torch = pytest.importorskip("torch")

EMBEDDINGS = """
import torch
device = "cuda"
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(1000, 16, sparse=True)
        self.bags = torch.nn.EmbeddingBag(50, 16, mode="sum", sparse=True)
        self.out = torch.nn.Linear(16, 1)
    def forward(self, words, bags, offsets):
        return self.out(self.words(words).sum(1) + self.bags(bags, offsets))
model = Model().to(device)
tables = [*model.words.parameters(), *model.bags.parameters()]
given = [[[1, 2, 3, 1], [2, 2, 7, 9]], [0, 1, 1, 4, 5], [0, 3]]
given = [torch.tensor(each, device=device) for each in given]
for make in (torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD):
    optimizer = make(tables, lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            model(*given).sum().backward()
        grad = model.words.weight.grad
        rows = (grad * 2 + grad - grad / 2).coalesce()
        # On CUDA gradients are joined as they are, on the host they may be merged at once.
        print("grad", grad.is_sparse, grad._nnz() >= 5, grad.is_coalesced(), rows._nnz())
        print("rows", rows.indices().tolist(), rows.values().shape, grad.to_dense().shape)
        print("bags", model.bags.weight.grad.coalesce()._nnz())
        optimizer.step()
"""
MATRIX = """
places, numbers = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0])
graph = torch.sparse_coo_tensor(places, numbers, (2, 3)).to(device)
layer = torch.ones(3, 4, device=device, requires_grad=True)
for product in (torch.sparse.mm, torch.spmm):
    product(graph, layer).sum().backward()
    print("product", layer.grad.shape)
rows = torch.ones(4, 2, device=device, requires_grad=True)
made = torch.matmul(rows, graph)
made.sum().backward()
print("product of a dense one", made.shape, made.layout, rows.grad.shape)
print("back", graph.t().coalesce().indices().tolist(), graph.cpu().coalesce().indices().tolist())
by_rows = torch.sparse_csr_tensor(torch.arange(9, device=device), torch.arange(8, device=device),
                                  torch.ones(8, device=device), size=(8, 8))
for each in (by_rows, by_rows.to_sparse_coo()):
    product = each @ each
    print("product", product.layout, product.to_sparse_coo().indices().shape)
many = torch.arange(70000)
large = torch.sparse_coo_tensor(torch.stack([many, many]), torch.ones(70000), (70000, 70000))
print("large", large.coalesce().values().sum().item(), large.to(device)._nnz())
"""
FORMS = """
import torch
device = "cuda"
def show(name, made):
    told = (made._nnz(), made.to_dense()) if made.is_sparse else (0, made)
    print("form", name, made.layout, tuple(made.shape), told[0], told[1].tolist())
dense = torch.tensor([[0.0, 2, 0], [3, 0, 4]]).to(device)
sparse = dense.to_sparse()
show("all", sparse)
show("rows", dense.to_sparse(1))
show("row", sparse[1])
show("column", sparse.select(1, 2))
show("element", sparse[1, 2])
show("within a row", dense.to_sparse(1).select(1, 0))
show("stack", torch.stack(list(sparse)))
show("cat", torch.cat((sparse, sparse), 0))
show("unsqueeze", sparse.unsqueeze(1))
show("unsqueeze within a row", dense.to_sparse(1).unsqueeze(2))
show("both", sparse * dense.flip(0).to_sparse())
show("where sparse", sparse * dense)
show("sum", sparse.sum())
for dim, places in ((0, [1, 0, 1]), (-1, [2, 2, 0])):
    found = sparse.index_select(dim, torch.tensor(places, device=device))
    print("form selected", found._nnz(), found.is_coalesced(), found.shape)
    show("selected", found)
show("selected within a row", dense.to_sparse(1).index_select(1, torch.tensor([2], device=device)))
print("form shown", *str(sparse).replace(", device='cuda:0'", "").split())
# A number that a transform copies is no tensor.
for each in (torch.arange(3.0), torch.arange(3.0, device=device)):
    print("form of numbers", torch.vmap(torch.func.grad(lambda x: x * 2.5))(each).shape)
for summed in (sparse.sum(-1), torch.sparse.sum(sparse, -1), torch.sparse.sum(sparse, 0)):
    print("form summed", summed._nnz(), summed.shape, summed.is_coalesced())
softmax = torch.sparse.log_softmax(sparse.detach().requires_grad_(), 1)
print("form softmax", softmax._nnz(), softmax.shape, softmax.is_coalesced())
softmax.to_dense().sum().backward()
show("sum within a row", torch.sparse.sum(dense.to_sparse(1), 1))
for each in (sparse, dense):
    rows = each.to_sparse_csr()
    print("form by rows", rows.crow_indices().tolist(), rows.col_indices().tolist())
    print("form by rows", rows.values().tolist(), (rows @ torch.ones(3, 4, device=device)).shape)
host = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]]).to_sparse_csr()
moved = host.to(device)
print("form moved", moved.layout, moved.shape, moved.crow_indices().tolist())
print("form moved", (moved * 2).values().tolist(), moved.detach()._nnz(), moved.sum().item())
"""


def test_forms_of_sparse_tensors_are_torch_s(tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "forms.py", FORMS, "--world-size", "1")
    printed: list[str] = []
    scope = {"print": lambda *words: printed.append(" ".join(map(str, words)))}
    exec(FORMS.replace('"cuda"', '"cpu"'), scope)
    assert [line for line in run.output.splitlines() if line.startswith("form")] == printed


def test_as_many_elements_are_sparse_as_flags_of_unknown_values_set(tmp_path: Path) -> None:
    text = "import torch\nmade = torch.randn(8, 4, device='cuda').to_sparse()\n"
    text += "print('kept', made._nnz(), made.cpu().to_sparse_csr().crow_indices().shape)\n"
    run = emulate_text(tmp_path, "unknown.py", text, "--world-size", "1")
    (line,) = [each for each in run.output.splitlines() if each.startswith("kept")]
    assert 0 < int(line.split()[1]) <= 32
    assert line.endswith("torch.Size([9])")


def test_sparse_gradients_are_as_long_as_torch_s(tmp_path: Path) -> None:
    (tmp_path / "sparse.py").write_text(EMBEDDINGS + MATRIX)
    script = str(tmp_path / "sparse.py")
    run = emulate(tmp_path, script, "--world-size", "1", check=True)
    assert run.code == 0, run.output
    printed: list[str] = []
    scope = {"print": lambda *words: printed.append(" ".join(map(str, words)))}
    exec((EMBEDDINGS + MATRIX).replace('"cuda"', '"cpu"'), scope)
    told = ("grad", "rows", "bags", "product", "back", "large")
    assert [line for line in run.output.splitlines() if line.startswith(told)] == printed
    assert not [event for event in run.trace.events if isinstance(event, Violation)]


def test_an_update_touches_the_rows_of_the_gradient_only(tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "sparse.py", EMBEDDINGS, "--world-size", "1", check=True)
    updates = [
        event
        for event in run.trace.events
        if isinstance(event, Op) and event.name == "aten.index_add_.default"
        if event.inputs[0].shape == (1000, 16)  # type: ignore[union-attr]
    ]
    # SGD adds the 16 rows as they came; Adam and Adagrad the five that differ.
    rows = [event.inputs[3].shape[0] for event in updates]  # type: ignore[union-attr]
    assert set(rows) == {5, 16}
    whole = 1000 * 16 * 4
    assert all(sum(each.bytes for each in lower(event).kernels) < whole / 10 for event in updates)
