"""delta-rs facts on which the design of the Delta sink rests; needs deltalake and pyarrow."""

# ruff: noqa: BLE001, E731, PTH102, PTH103, PTH202

import json
import os
import shutil
import tempfile
import threading

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

print("deltalake", deltalake.__version__, "pyarrow", pa.__version__)
root = tempfile.mkdtemp()
S = pa.schema([("v", pa.int64())])
n = 0


def add(path, rows=1, schema=S, stats=None):
    global n
    n += 1
    name = f"f{n}.parquet"
    pq.write_table(pa.table({f.name: pa.array([n] * rows, f.type) for f in schema}, schema=schema), f"{path}/{name}")
    return AddAction(name, os.path.getsize(f"{path}/{name}"), {}, 0, True, json.dumps(stats or {"numRecords": rows}))


def commit(t, path, app, version, schema=S, retries=None):
    t.create_write_transaction(
        [add(path, schema=schema)],
        "append",
        schema,
        commit_properties=CommitProperties(
            max_commit_retries=retries, app_transactions=[Transaction(a, version) for a in app]
        ),
    )


def attempt(label, f):
    try:
        print(label, "->", f())
    except BaseException as e:
        print(label, "-> RAISED", type(e).__name__, str(e)[:230].replace("\n", " "))


def fresh(name, **conf):
    p = f"{root}/{name}"
    os.mkdir(p)
    return p, DeltaTable.create(p, S, configuration=conf or None)


rows = lambda p: DeltaTable(p).to_pyarrow_table().num_rows if hasattr(DeltaTable, "to_pyarrow_table") else None

p, a = fresh("same")
b = DeltaTable(p)
attempt("1 first", lambda: commit(a, p, ["x"], 10))
attempt("1 stale handle, same app id, same version", lambda: commit(b, p, ["x"], 10))
print("  rows", rows(p), "v", DeltaTable(p).version())
c = DeltaTable(p)
attempt("2 FRESH handle, same app id, same version (engine refuses?)", lambda: commit(c, p, ["x"], 10))
print("  rows", rows(p))
attempt("2 fresh, smaller version", lambda: commit(DeltaTable(p), p, ["x"], 5))
print("  rows", rows(p), "txn", DeltaTable(p).transaction_version("x"))

p, a = fresh("other")
b = DeltaTable(p)
commit(a, p, ["x"], 1)
attempt("3 stale handle, other app id", lambda: commit(b, p, ["y"], 1))
print("  rows", rows(p), [DeltaTable(p).transaction_version(i) for i in "xyz"])

p, a = fresh("multi")
b = DeltaTable(p)
commit(a, p, ["x", "y"], 1)
attempt("4 stale, two app ids, one in common", lambda: commit(b, p, ["y", "z"], 2))
print("  rows", rows(p))

p, a = fresh("schema")
b = DeltaTable(p)
attempt(
    "5 other adds a column",
    lambda: a.alter.add_columns([deltalake.Field("w", deltalake.schema.PrimitiveType("long"), True)]),
)
attempt("5 stale append", lambda: commit(b, p, ["x"], 1))
print("  rows", rows(p))
attempt("5 fresh append, file without the new column", lambda: commit(DeltaTable(p), p, ["x2"], 1))
attempt("  read", lambda: DeltaTable(p).to_pyarrow_table().to_pylist())

p, a = fresh("many")
for i in range(12):
    commit(DeltaTable(p), p, ["x"], i)
DeltaTable(p).create_checkpoint()
print("7 txn after a checkpoint", DeltaTable(p).transaction_version("x"))
os.makedirs(f"{p}/_headrace/g")
shutil.copy(f"{p}/f{n}.parquet", f"{p}/_headrace/g/rows.parquet")
os.makedirs(f"{p}/part")
shutil.copy(f"{p}/f{n}.parquet", f"{p}/part/orphan.parquet")
attempt(
    "8 vacuum(0) would delete",
    lambda: DeltaTable(p).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True),
)
p, a = fresh("expire", **{"delta.setTransactionRetentionDuration": "interval 0 seconds"})
commit(DeltaTable(p), p, ["x"], 3)
print("9 txn with retention 0:", DeltaTable(p).transaction_version("x"))
DeltaTable(p).create_checkpoint()
print("  after checkpoint:", DeltaTable(p).transaction_version("x"))
p, a = fresh("gone")
b = DeltaTable(p)
shutil.rmtree(f"{p}/_delta_log")
attempt("10 append to a table whose log is gone", lambda: commit(b, p, ["x"], 1))
p, a = fresh("recreated")
b = DeltaTable(p)
shutil.rmtree(f"{p}/_delta_log")
DeltaTable.create(p, S)
print("10 ids", b.metadata().id == DeltaTable(p).metadata().id)
p, a = fresh("race")
for i in range(3):
    commit(DeltaTable(p), p, ["w"], i)
hs = [DeltaTable(p) for _ in range(8)]
out = []


def run(i):
    try:
        commit(hs[i], p, ["same"], 7)
        out.append("ok")
    except Exception as e:
        out.append(type(e).__name__)


ts = [threading.Thread(target=run, args=(i,)) for i in range(8)]
[t.start() for t in ts]
[t.join() for t in ts]
print("11 eight threads, same app id and version, stale handles:", sorted(out), "rows", rows(p))
p, a = fresh("missingfile")
attempt(
    "12 add of a file that does not exist",
    lambda: a.create_write_transaction([AddAction("no.parquet", 10, {}, 0, True, "{}")], "append", S),
)
attempt(
    "13 unreachable object store",
    lambda: DeltaTable(
        "s3://b/t",
        storage_options={
            "AWS_ACCESS_KEY_ID": "AKIDSECRET",
            "AWS_SECRET_ACCESS_KEY": "SECRETVALUE",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "AWS_REGION": "x",
            "AWS_ALLOW_HTTP": "true",
            "max_retries": "1",
            "retry_timeout": "2s",
        },
    ),
)
p, a = fresh("wrong")
pq.write_table(pa.table({"v": ["text"]}), f"{p}/w.parquet")
act = AddAction("w.parquet", os.path.getsize(f"{p}/w.parquet"), {}, 0, True, "{}")
attempt(
    "6a string file, schema= string",
    lambda: DeltaTable(p).create_write_transaction([act], "append", pa.schema([("v", pa.string())])),
)
p, a = fresh("wrong2")
pq.write_table(pa.table({"v": ["text"]}), f"{p}/w.parquet")
attempt("6b string file, schema= table's", lambda: DeltaTable(p).create_write_transaction([act], "append", S))
attempt("   read", lambda: DeltaTable(p).to_pyarrow_table().to_pylist())
p, a = fresh("extra")
attempt(
    "6c schema= with one more column",
    lambda: commit(DeltaTable(p), p, ["x"], 1, schema=pa.schema([("v", pa.int64()), ("w", pa.int64())])),
)
attempt("   read", lambda: DeltaTable(p).to_pyarrow_table().to_pylist())
p, a = fresh("vac")
commit(a, p, ["x"], 1)
for d in ("_headrace/g", "part", "."):
    os.makedirs(f"{p}/{d}", exist_ok=True)
    shutil.copy(f"{p}/f{n}.parquet", f"{p}/{d}/orphan.parquet")
attempt(
    "8 vacuum(0, full=True) would delete",
    lambda: DeltaTable(p).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=True),
)
out = []


def mk():
    try:
        DeltaTable.create(f"{root}/new", S, mode="ignore")
        out.append("ok")
    except Exception as e:
        out.append(type(e).__name__ + " " + str(e)[:80])


ts = [threading.Thread(target=mk) for _ in range(6)]
[t.start() for t in ts]
[t.join() for t in ts]
print("14 six creations at once, mode=ignore:", sorted(out), "version", DeltaTable(f"{root}/new").version())
p, a = fresh("zero")
b = DeltaTable(p)
commit(a, p, ["q"], 1)
attempt("15 stale handle, other app id, max_commit_retries=0", lambda: commit(b, p, ["r"], 1, retries=0))
p, a = fresh("big")
attempt("16 version 2**62", lambda: commit(a, p, ["q"], 2**62))
print(DeltaTable(p).transaction_version("q"))
shutil.rmtree(root)
