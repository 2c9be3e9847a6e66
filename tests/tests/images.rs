//! `ublk-rbd image` beside `rbd`: each reads what the other makes, both say the same of it, and
//! removing leaves nothing.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use harness::ceph::{Cluster, Version};
use harness::product::{Product, client, text};
use harness::tools::{sha256_file, write_pattern};
use harness::{Need, require};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// All objects of the pools, with their namespaces.
fn objects(cluster: &Cluster) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for pool in ["rbd", "data"] {
        let listed = cluster.run(["rados", "-p", pool, "ls", "--all"])?;
        all.extend(listed.lines().map(|line| format!("{pool}: {line}")));
    }
    all.sort();
    Ok(all)
}

/// What `rbd info` and ours say of an image, checked to agree wherever both say something.
fn info(cluster: &Cluster, product: &Product, image: &str) -> Result<Value> {
    let ours = product.json(["image", "info", image])?;
    // Its times are in the local zone.
    let mut command = cluster.command(["rbd", "info", "--format", "json", image])?;
    command.env("TZ", "UTC");
    let theirs = harness::tools::run(command, std::time::Duration::from_secs(30))?;
    let theirs: Value = serde_json::from_str(&theirs)?;
    let mut compared = 0;
    for (key, value) in theirs.as_object().context("no object")? {
        let Some(own) = ours.get(key) else { continue };
        let equal = match key.as_str() {
            "features" => same_set(own, value),
            "create_timestamp" | "access_timestamp" | "modify_timestamp" => {
                own.as_str() == Some(&utc(value.as_str().context("no text")?)?)
            }
            // The parent has an id of its own in each.
            "parent" => own["pool"] == value["pool"],
            _ => own == value,
        };
        ensure!(
            equal,
            "{image}: {key} is {own} here and {value} in rbd's words"
        );
        compared += 1;
    }
    ensure!(
        compared >= 13,
        "only {compared} fields in common: {ours} {theirs}"
    );
    Ok(ours)
}

/// `Mon Nov 30 15:29:29 2026` (asctime(3)) as `2026-11-30T15:29:29Z`.
fn utc(asctime: &str) -> Result<String> {
    let words: Vec<_> = asctime.split_whitespace().collect();
    let &[_, month, day, time, year] = &words[..] else {
        bail!("no time: {asctime}");
    };
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = months.find(month).context("no month")? / 3 + 1;
    Ok(format!("{year}-{month:02}-{day:0>2}T{time}Z"))
}

fn same_set(a: &Value, b: &Value) -> bool {
    let sorted = |v: &Value| {
        let items = v.as_array().into_iter().flatten();
        let mut names: Vec<_> = items.map(Value::to_string).collect();
        names.sort();
        names
    };
    sorted(a) == sorted(b)
}

fn ls(cluster: &Cluster, product: &Product, pool: &str) -> Result<Vec<String>> {
    let ours: Vec<_> = product
        .run(["image", "ls", pool])?
        .lines()
        .map(str::to_owned)
        .collect();
    let theirs = cluster.run(["rbd", "ls", pool])?;
    ensure!(
        theirs.lines().eq(ours.iter().map(String::as_str)),
        "{ours:?} {theirs}"
    );
    let json = product.json(["image", "ls", pool])?;
    ensure!(json == serde_json::json!(ours), "{json} {ours:?}");
    Ok(ours)
}

/// What each image is created with; the first two words are the name and the size.
const KINDS: [&[&str]; 6] = [
    &["rbd/plain", "9M"],
    &["rbd/odd", "5000001B"],
    &["rbd/small-objects", "3M", "--object-size", "64K"],
    &[
        "rbd/striped",
        "40M",
        "--object-size",
        "1M",
        "--stripe-unit",
        "16K",
        "--stripe-count",
        "5",
    ],
    &["rbd/wide", "12M", "--data-pool", "data"],
    &["rbd/tenant/inner", "7M"],
];

fn images(version: Version) -> Result<()> {
    let needs = [Need::Ceph(version), Need::NBDCOPY, Need::NBDINFO];
    if !require(&needs) {
        return Ok(());
    }
    let cluster = Cluster::builder().version(version).start()?;
    let commands = [
        "osd pool create data 8",
        "osd pool application enable data rbd",
    ];
    cluster.ceph_batch(&commands)?;
    cluster.run(["rbd", "namespace", "create", "rbd/tenant"])?;
    let product = Product::new(&cluster)?;
    ensure!(ls(&cluster, &product, "rbd")?.is_empty());
    let empty = objects(&cluster)?;

    for kind in KINDS {
        let &[image, size, ref options @ ..] = kind else {
            unreachable!()
        };
        let create = ["image", "create", "--size", size];
        let said = product.run(create.iter().chain(options).chain(&[image]))?;
        ensure!(said.is_empty(), "{said}");
        let created = info(&cluster, &product, image)?;
        ensure!(created["snapshot_count"] == 0, "{created}");
        // rbd makes one of the same options, and the two differ in name and id alone.
        let theirs = format!("{image}-by-rbd");
        let create = [
            "rbd",
            "create",
            "--image-feature",
            "layering",
            "--size",
            size,
        ];
        // (Of a size in bytes it knows the suffix B only.)
        cluster.run(create.iter().chain(options).chain(&[theirs.as_str()]))?;
        let made = info(&cluster, &product, &theirs)?;
        for key in [
            "size",
            "objects",
            "order",
            "object_size",
            "features",
            "stripe_unit",
        ] {
            ensure!(
                created[key] == made[key],
                "{image}: {key}: {created} {made}"
            );
        }
        for key in ["stripe_count", "data_pool", "format", "snapshot_count"] {
            ensure!(
                created[key] == made[key],
                "{image}: {key}: {created} {made}"
            );
        }
    }
    let listed = ls(&cluster, &product, "rbd")?;
    ensure!(listed.len() == 10 && listed.is_sorted(), "{listed:?}");
    ensure!(ls(&cluster, &product, "rbd/tenant")? == ["inner", "inner-by-rbd"]);

    // Data by rbd in images of ours; then everything goes, ours by rbd and rbd's by us.
    for kind in KINDS {
        let image = kind[0];
        let mapped = product.map(image, &[])?;
        let size = client::size(&mapped)?;
        let file = product.scratch("file");
        write_pattern(&file, size.div_ceil(MIB), 4)?;
        fs::File::options().write(true).open(&file)?.set_len(size)?;
        client::copy_in(&file, &mapped)?;
        product.unmap(image)?;
        let out = product.scratch("out");
        cluster.run(["rbd", "export", "--no-progress", image, text(&out)])?;
        ensure!(sha256_file(&out)? == sha256_file(&file)?, "{image} differs");
        let theirs = format!("{image}-by-rbd");
        let written = product.map(&theirs, &[])?;
        client::copy_in(&file, &written)?;
        product.unmap(&theirs)?;
        product.assert_gone()?;
        ensure!(objects(&cluster)?.len() > empty.len());
        fs::remove_file(&out)?;

        // What others add to an image shows too.
        if image == "rbd/plain" {
            cluster.run(["rbd", "snap", "create", "--no-progress", "rbd/plain@s"])?;
            ensure!(info(&cluster, &product, image)?["snapshot_count"] == 1);
            cluster.run(["rbd", "snap", "protect", "rbd/plain@s"])?;
            let clone = ["rbd", "clone", "rbd/plain@s", "rbd/clone"];
            cluster.run(clone)?;
            let clone = info(&cluster, &product, "rbd/clone")?;
            ensure!(clone["parent"]["pool"] == "rbd", "{clone}");
            cluster.run(["rbd", "rm", "--no-progress", "rbd/clone"])?;
            cluster.run(["rbd", "snap", "unprotect", "rbd/plain@s"])?;
            cluster.run(["rbd", "snap", "rm", "--no-progress", "rbd/plain@s"])?;
        }
        cluster.run(["rbd", "rm", "--no-progress", image])?;
        let rm = product.run(["image", "rm", "--no-progress", &theirs])?;
        ensure!(rm.is_empty(), "{rm}");
    }
    ensure!(ls(&cluster, &product, "rbd")?.is_empty());
    ensure!(ls(&cluster, &product, "rbd/tenant")?.is_empty());
    let mut left = objects(&cluster)?;
    // The directories of the pools stay, as after rbd; so does what a clone made for all.
    left.retain(|object| {
        let kept = [
            "rbd_directory",
            "rbd_info",
            "rbd_children",
            "rbd_trash",
            "rbd_object_map",
        ];
        !empty.contains(object) && !kept.iter().any(|name| object.ends_with(name))
    });
    ensure!(left.is_empty(), "left: {left:?}");
    Ok(())
}

#[test]
fn images_of_ceph_16() -> Result<()> {
    images(Version::V16)
}

#[test]
fn images_of_ceph_18() -> Result<()> {
    images(Version::V18)
}

#[test]
fn images_of_ceph_20() -> Result<()> {
    images(Version::V20)
}
