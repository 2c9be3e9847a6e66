#!/bin/sh
# Fills fuzz/corpus/TARGET with seeds from tests/golden. Run again, it adds what is missing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../tests/golden
corpus=$here/corpus
mkdir -p "$here/target" "$corpus"

# Copies files named after the directory they are in, so that releases do not overwrite each other.
put() {
    target=$1
    shift
    mkdir -p "$corpus/$target"
    for file; do
        cp "$file" "$corpus/$target/$(basename "$(dirname "$file")")-$(basename "$file")"
    done
}

for release in v16 v18 v20; do
    put osdmap "$golden/$release"/*.osdmap
    put crush "$golden/$release"/*.crush
    put monmap "$golden/$release"/*.monmap
    for file in "$golden/$release"/incr/*.inc; do
        mkdir -p "$corpus/osdmap_incremental"
        cp "$file" "$corpus/osdmap_incremental/$release-$(basename "$file")"
    done
done
put osdmap "$golden"/osdmap/*.osdmap
put crush "$golden"/algs/*.crush
put keyring "$golden"/captures/*.keyring

# The rest comes out of captures. The splitter needs no more than a compiler.
rustc --edition 2024 -O -o "$here/target/seed-corpus" "$here/seed-corpus.rs"
"$here/target/seed-corpus" "$golden/captures" "$corpus"
