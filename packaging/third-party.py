#!/usr/bin/env python3
"""Prints the licences of everything that is linked into dlock, with their texts: most of them ask for that.

third-party.py TARGET     to be run in the root of the source
"""

import json
import pathlib
import subprocess
import sys

TEXTS = ("license", "licence", "copying", "notice", "unlicense")


def metadata(target):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def linked(graph):
    """The packages that the binary is made of: not those of build scripts, macros and tests."""
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    macros = {p["id"] for p in graph["packages"] if any("proc-macro" in target["kind"] for target in p["targets"])}
    found, open_ends = set(), [graph["resolve"]["root"]]
    while open_ends:
        for dependency in nodes[open_ends.pop()]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]) and dependency["pkg"] not in found | macros:
                found.add(dependency["pkg"])
                open_ends.append(dependency["pkg"])
    return sorted((p for p in graph["packages"] if p["id"] in found), key=lambda p: (p["name"], p["version"]))


def main():
    [target] = sys.argv[1:]
    packages = linked(metadata(target))
    texts = {}
    print("dlock contains the Rust standard library (MIT OR Apache-2.0, https://www.rust-lang.org) and these crates:\n")
    for package in packages:
        if not package["license"]:
            sys.exit(f"third-party.py: {package['name']} names no licence")
        title = f"{package['name']} {package['version']}"
        print(f"  {title}: {package['license']}; {package['repository'] or 'https://crates.io/crates/' + package['name']}")
        for file in sorted(pathlib.Path(package["manifest_path"]).parent.iterdir()):
            if file.is_file() and file.name.lower().startswith(TEXTS):
                text = "\n".join(line.rstrip() for line in file.read_text(errors="replace").strip().splitlines())
                texts.setdefault(text, []).append(f"{title} ({file.name})")
    for text, whose in texts.items():
        print(f"\n\n{'=' * 100}\n{', '.join(whose)}\n{'=' * 100}\n\n{text}")


main()
