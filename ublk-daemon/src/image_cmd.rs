//! `ublk-rbd image ...`: metadata, over one short connection to the cluster.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use anyhow::{Result, bail};
use cluster::conf::{Conf, options};
use cluster::objecter::results::Watcher;
use cluster::rados::{IoCtx, Rados};
use cluster::rbd::Features;
use cluster::rbd::image::{self, CreateOptions, Image};
use serde::Serialize;

use crate::cli::{CreateArgs, Format, ImageCommand};
use crate::spec::{self, ImageSpec, PoolSpec};
use crate::{output, time};

/// Runs one subcommand against the cluster that `conf` describes.
pub fn run(conf: &Conf, command: ImageCommand, format: Format) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let rados = cluster::transport::tokio::connect(conf).await?;
        let result = match command {
            ImageCommand::Create(args) => create(&rados, conf, args).await,
            ImageCommand::Ls { pool } => ls(&rados, conf, pool, format).await,
            ImageCommand::Info { image } => info(&rados, conf, &image, format).await,
            ImageCommand::Rm { image, no_progress } => rm(&rados, conf, &image, no_progress).await,
        };
        rados.shutdown().await;
        result
    })
}

/// The pool and namespace of an image, the pool `rbd_default_pool` where none is named.
pub async fn io_of(rados: &Rados, conf: &Conf, image: &ImageSpec) -> Result<IoCtx> {
    let pool = match &image.pool {
        Some(pool) => pool.clone(),
        None => conf.get(&options::RBD_DEFAULT_POOL)?,
    };
    Ok(rados.io_ctx(&pool, &image.namespace).await?)
}

fn no_snap(image: &ImageSpec) -> Result<()> {
    match &image.snap {
        Some(snap) => bail!("'@{snap}' is out of place: name the image without a snapshot"),
        None => Ok(()),
    }
}

async fn create(rados: &Rados, conf: &Conf, args: CreateArgs) -> Result<()> {
    no_snap(&args.image)?;
    let io = io_of(rados, conf, &args.image).await?;
    if !args.object_size.is_power_of_two() {
        bail!("object size {} is no power of two", args.object_size);
    }
    let mut features = Features::default();
    for name in &args.image_feature {
        match Features::from_name(name) {
            Some(feature) => features = features.with(feature),
            None => bail!("'{name}' is no feature: `rbd help create` lists them"),
        }
    }
    if args.image_feature.is_empty() {
        features = Features::LAYERING;
    }
    let data_pool = match &args.data_pool {
        Some(name) => Some(rados.pool_id(name).await?).filter(|id| *id != io.pool()),
        None => None,
    };
    let options = CreateOptions {
        size: args.size,
        order: args.object_size.trailing_zeros() as u8,
        stripe_unit: args.stripe_unit.unwrap_or(0),
        stripe_count: args.stripe_count.unwrap_or(0),
        features,
        data_pool,
    };
    image::create(&io, &args.image.image, &options, rados.random() as u32).await?;
    Ok(())
}

async fn ls(rados: &Rados, conf: &Conf, pool: Option<PoolSpec>, format: Format) -> Result<()> {
    let pool = match pool {
        Some(pool) => pool,
        None => PoolSpec {
            pool: conf.get(&options::RBD_DEFAULT_POOL)?,
            namespace: String::new(),
        },
    };
    let io = rados.io_ctx(&pool.pool, &pool.namespace).await?;
    let names = image::list(&io).await?;
    output::print(format, &names, |out| {
        for name in &names {
            let _ = writeln!(out, "{name}");
        }
    })
}

/// What `image info` prints, by the names that `rbd info --format json` has.
#[derive(Serialize)]
struct Info {
    name: String,
    id: String,
    size: u64,
    objects: u64,
    order: u8,
    object_size: u64,
    snapshot_count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_pool: Option<String>,
    block_name_prefix: String,
    format: u8,
    features: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<Parent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stripe_unit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stripe_count: Option<u64>,
    create_timestamp: String,
    access_timestamp: String,
    modify_timestamp: String,
    watchers: Vec<String>,
}

#[derive(Serialize)]
struct Parent {
    pool: String,
    pool_namespace: String,
    image_id: String,
    snap_id: u64,
}

async fn info(rados: &Rados, conf: &Conf, spec: &ImageSpec, format: Format) -> Result<()> {
    let io = io_of(rados, conf, spec).await?;
    let image = Image::open(&io, &spec.image, spec.snap.as_deref()).await?;
    let watchers = image::watchers(&io, &image).await?;
    let info = describe(rados, &image, &watchers);
    output::print(format, &info, |out| plain(out, &info))
}

fn describe(rados: &Rados, image: &Image, watchers: &[Watcher]) -> Info {
    let striped = image.features.contains(Features::STRIPING);
    let pool_name = |id: i64| rados.pool_name(id).unwrap_or_else(|| id.to_string());
    Info {
        name: image.name.clone(),
        id: image.id.clone(),
        size: image.size,
        objects: image.layout.object_count(image.size),
        order: image.order,
        object_size: image.layout.object_size(),
        snapshot_count: image.snapshots.len(),
        data_pool: image.data_pool.map(pool_name),
        block_name_prefix: image.prefix.clone(),
        format: 2,
        features: image.features.names(),
        parent: image.parent.as_ref().map(|p| Parent {
            pool: pool_name(p.pool),
            pool_namespace: p.namespace.clone(),
            image_id: p.image_id.clone(),
            snap_id: p.snap,
        }),
        stripe_unit: striped.then(|| image.layout.stripe_unit()),
        stripe_count: striped.then(|| image.layout.stripe_count()),
        create_timestamp: time::utc(image.created),
        access_timestamp: time::utc(image.accessed),
        modify_timestamp: time::utc(image.modified),
        watchers: watchers
            .iter()
            .map(|w| format!("{} {}", w.name, w.addr))
            .collect(),
    }
}

fn plain(out: &mut String, info: &Info) {
    let _ = writeln!(out, "image '{}':", info.name);
    let mut line = |key: &str, value: String| {
        let _ = writeln!(out, "    {key}: {value}");
    };
    line(
        "size",
        format!("{} in {} objects", spec::human(info.size), info.objects),
    );
    line(
        "order",
        format!("{} ({} objects)", info.order, spec::human(info.object_size)),
    );
    line("snapshots", info.snapshot_count.to_string());
    line("id", info.id.clone());
    if let Some(pool) = &info.data_pool {
        line("data pool", pool.clone());
    }
    line("block name prefix", info.block_name_prefix.clone());
    line("format", info.format.to_string());
    line("features", info.features.join(", "));
    if let Some(p) = &info.parent {
        line(
            "parent",
            format!(
                "image id {} in pool {}, snapshot {}",
                p.image_id, p.pool, p.snap_id
            ),
        );
    }
    if let (Some(unit), Some(count)) = (info.stripe_unit, info.stripe_count) {
        line("stripe unit", spec::human(unit));
        line("stripe count", count.to_string());
    }
    line("created", info.create_timestamp.clone());
    line("accessed", info.access_timestamp.clone());
    line("modified", info.modify_timestamp.clone());
    for watcher in &info.watchers {
        line("watcher", watcher.clone());
    }
}

async fn rm(rados: &Rados, conf: &Conf, spec: &ImageSpec, no_progress: bool) -> Result<()> {
    no_snap(spec)?;
    let io = io_of(rados, conf, spec).await?;
    let image = Image::open(&io, &spec.image, None).await?;
    let data = match image.data_pool {
        Some(pool) => io.in_pool(pool),
        None => io.clone(),
    };
    let shown = !no_progress && std::io::stderr().is_terminal();
    let mut last = u64::MAX;
    image::remove(&io, &data, &image, |done, total| {
        let percent = (done * 100).checked_div(total).unwrap_or(100);
        if shown && percent != last {
            last = percent;
            let _ = write!(std::io::stderr(), "\rRemoving {}: {percent}%", spec.image);
        }
    })
    .await?;
    if shown && last != u64::MAX {
        eprintln!();
    }
    Ok(())
}
