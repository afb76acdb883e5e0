#!/usr/bin/env python3
"""Prints what is linked into dlock: the licences with their texts, which most of them ask for, or a bill of materials.

third-party.py TARGET             to be run in the root of the source
third-party.py --sbom TARGET      CycloneDX 1.6, https://cyclonedx.org/docs/1.6/json/

The same source gives the same text: the time of the bill is that of SOURCE_DATE_EPOCH, if it is set.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse
import uuid

TEXTS = ("license", "licence", "copying", "notice", "unlicense")


# The notice in its file COPYRIGHT.
MUSL = """\
Copyright (c) 2005-2020 Rich Felker, et al.

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software
is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES
OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE
LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR
IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


def output(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def metadata(target):
    return json.loads(output("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target))


def linked(graph, target):
    """The packages that the binary is made of: not those of build scripts, macros and tests.

    `cargo metadata` gives a package the features that tests need, too, and with them dependencies that the binary has not.
    """
    lines = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    tree = output("cargo", "tree", "--locked", "--target", target, *lines)
    names = {tuple(line.split()[:2]) for line in tree.splitlines()}
    crates = [package for package in graph["packages"] if package["id"] != graph["resolve"]["root"]]
    found = [package for package in crates if (package["name"], f"v{package['version']}") in names]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def print_licences(packages):
    musl = f"musl {musl_version()}"
    texts = {MUSL: [f"{musl} (COPYRIGHT)"]}
    print("dlock contains the Rust standard library (MIT OR Apache-2.0, https://www.rust-lang.org), the C library")
    print(f"{musl} (MIT, https://musl.libc.org), libunwind of LLVM (Apache-2.0 WITH LLVM-exception), and these crates:\n")
    for package in packages:
        title = f"{package['name']} {package['version']}"
        print(f"  {title}: {package['license']}; {package['repository'] or 'https://crates.io/crates/' + package['name']}")
        for file in sorted(pathlib.Path(package["manifest_path"]).parent.iterdir()):
            if file.is_file() and file.name.lower().startswith(TEXTS):
                text = "\n".join(line.rstrip() for line in file.read_text(errors="replace").strip().splitlines())
                texts.setdefault(text, []).append(f"{title} ({file.name})")
    for text, whose in texts.items():
        print(f"\n\n{'=' * 100}\n{', '.join(whose)}\n{'=' * 100}\n\n{text}")


def musl_version():
    """That of the C library which Rust links: the same for every architecture."""
    targets = pathlib.Path(output("rustc", "--print", "sysroot").strip(), "lib/rustlib")
    for library in targets.glob("*-linux-musl/lib/self-contained/libc.a"):
        member = output("ar", "p", str(library), "version.lo", encoding="latin-1")
        return re.search(r"\d+\.\d+\.\d+", member)[0]
    sys.exit("third-party.py: Rust has no target with musl: rustup target add x86_64-unknown-linux-musl")


def component(kind, name, version, licence, purl):
    # Before SPDX expressions, crates separated their licences by a slash.
    licences = [{"expression": re.sub(" */ *", " OR ", licence)}]
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "licenses": licences, "purl": purl}


def crate(package, sums):
    name, version = package["name"], package["version"]
    found = component("library", name, version, package["license"], f"pkg:cargo/{name}@{urllib.parse.quote(version)}")
    found["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
    if package["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def print_sbom(graph, packages, target):
    entry = r'^name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "(.*)"$'
    locked = re.findall(entry, pathlib.Path("Cargo.lock").read_text(), re.MULTILINE)
    sums = {(name, version): checksum for name, version, checksum in locked}
    [root] = [package for package in graph["packages"] if package["id"] == graph["resolve"]["root"]]
    # Not pkg:cargo, which would be the package of crates.io with that name.
    dlock = component("application", "dlock", root["version"], root["license"], f"pkg:generic/dlock@{root['version']}")
    compiler = dict(line.split(": ", 1) for line in output("rustc", "-vV").splitlines() if ": " in line)
    rust, llvm, musl = compiler["release"], compiler["LLVM version"], musl_version()
    runtime = [
        component("library", "rust-std", rust, "MIT OR Apache-2.0", f"pkg:generic/rust-std@{rust}"),
        component("library", "musl", musl, "MIT", f"pkg:generic/musl@{musl}"),
        component("library", "libunwind", llvm, "Apache-2.0 WITH LLVM-exception", f"pkg:generic/libunwind@{llvm}"),
    ]
    crates = {package["id"]: crate(package, sums) for package in packages}
    nodes = {node["id"]: node["deps"] for node in graph["resolve"]["nodes"]}

    def needs(package):
        return sorted(crates[dependency["pkg"]]["bom-ref"] for dependency in nodes[package] if dependency["pkg"] in crates)

    dependencies = [{"ref": dlock["bom-ref"], "dependsOn": needs(root["id"]) + [part["bom-ref"] for part in runtime]}]
    dependencies += [{"ref": crates[package]["bom-ref"], "dependsOn": needs(package)} for package in crates]
    time = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.isoformat().replace("+00:00", "Z"),
            "component": {**dlock, "properties": [{"name": "dlock:target", "value": target}]},
        },
        "components": [*crates.values(), *runtime],
        "dependencies": dependencies,
    }
    bill["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(bill)).urn
    print(json.dumps(bill, indent=2))


def main():
    *options, target = sys.argv[1:]
    graph = metadata(target)
    packages = linked(graph, target)
    for package in packages:
        if not package["license"]:
            sys.exit(f"third-party.py: {package['name']} names no licence")
    if options == ["--sbom"]:
        print_sbom(graph, packages, target)
    elif options == []:
        print_licences(packages)
    else:
        sys.exit(f"third-party.py: unknown options {options}; there is only --sbom")


main()
