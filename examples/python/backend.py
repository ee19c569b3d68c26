"""Builds the wheel, for pip: `pip wheel examples/python`, from the top of the checkout.

It needs Cargo, and no other package: a wheel is a zip file with some texts in it. Nothing is written here: the library and the
command are built below Cargo's target directory. The library has the features `capi,tls`; `-C features=capi,tls,testing` adds
the nodes for unit tests.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
LIBRARY = "libredlock_sync.so"

METADATA = """\
Metadata-Version: 2.1
Name: redlock-sync
Version: {version}
Summary: Distributed locks on Redis: single-instance locks and Redlock over N independent masters
License: MIT OR Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
Classifier: Programming Language :: Python :: 3.9
Classifier: Programming Language :: Python :: 3.10
Classifier: Programming Language :: Python :: 3.11
Classifier: Programming Language :: Python :: 3.12
Classifier: Programming Language :: Python :: 3.13
Description-Content-Type: text/plain

{description}
"""

WHEEL = """\
Wheel-Version: 1.0
Generator: redlock-sync
Root-Is-Purelib: false
Tag: {tag}
"""


def cargo(*arguments, **how):
    try:
        return subprocess.run([os.environ.get("CARGO", "cargo"), *arguments], cwd=TOP, check=True, **how)
    except FileNotFoundError:
        raise SystemExit("redlock-sync is built by Cargo, which is not installed: https://rustup.rs") from None


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    features = (config_settings or {}).get("features", "capi,tls")
    library = ["--lib", "--features", features, "--crate-type", "cdylib,staticlib"]
    cargo("rustc", "--release", "--locked", *library)
    cargo("build", "--release", "--locked", "--bin", "redlock", "--features", "cli")
    about = cargo("metadata", "--format-version", "1", "--no-deps", "--locked", stdout=subprocess.PIPE)
    built = Path(json.loads(about.stdout)["target_directory"]) / "release"

    version = re.search(r'^version = "(.*)"$', (TOP / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
    # Any Python 3 of this platform: the library has no part of Python's.
    tag = "py3-none-" + re.sub("[-.]", "_", sysconfig.get_platform())
    name = f"redlock_sync-{version}"
    description = re.match(r'"""(.*?)"""', (HERE / "src/redlock/__init__.py").read_text(encoding="utf-8"), re.S)[1]
    files = {f"redlock/{file.name}": file.read_bytes() for file in sorted((HERE / "src/redlock").glob("*.py"))}
    files["redlock/py.typed"] = b""
    files[f"redlock/{LIBRARY}"] = (built / LIBRARY).read_bytes()
    files[f"{name}.data/scripts/redlock"] = (built / "redlock").read_bytes()
    files[f"{name}.dist-info/METADATA"] = METADATA.format(version=version, description=description).encode()
    files[f"{name}.dist-info/WHEEL"] = WHEEL.format(tag=tag).encode()
    for licence in sorted(TOP.glob("LICENSE-*")):
        files[f"{name}.dist-info/{licence.name}"] = licence.read_bytes()
    wheel = f"{name}-{tag}.whl"
    write(Path(wheel_directory) / wheel, files, f"{name}.dist-info/RECORD")
    return wheel


def write(path, files, record):
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            # The same inputs make the same wheel; and programs can be started.
            about = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            about.external_attr = (0o100755 if "/scripts/" in name or name.endswith(".so") else 0o100644) << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        archive.writestr(zipfile.ZipInfo(record, (1980, 1, 1, 0, 0, 0)), "".join(lines) + f"{record},,\n")


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("there is no source distribution: the wheel is built in a checkout of redlock-sync")
