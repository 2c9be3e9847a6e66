//! CRUSH: the map of devices, buckets and rules, and the function that places a PG on devices.
//!
//! [`Map::decode`] reads `CrushWrapper::encode`'s bytes and refuses what no mapper could walk
//! (cycles, dangling items, lying tree sizes), so [`Map::do_rule`] needs no such checks. The work
//! of one mapping is bounded too, since tunables and rules may ask for billions of retries.

mod build;
mod decode;
mod encode;
pub mod hash;
mod ln;
mod mapper;
mod msr;

#[cfg(test)]
mod golden;

use std::collections::BTreeMap;

use smallvec::SmallVec;

pub use mapper::Workspace;

/// "No device here": a hole in an erasure-coded set (`CRUSH_ITEM_NONE`).
pub const ITEM_NONE: i32 = 0x7fff_ffff;
/// Internal to the mapper: not decided yet (`CRUSH_ITEM_UNDEF`).
const ITEM_UNDEF: i32 = 0x7fff_fffe;

/// Key of the weight sets that apply to every pool without its own
/// (`CrushWrapper::DEFAULT_CHOOSE_ARGS`).
pub const DEFAULT_CHOOSE_ARGS: i64 = -1;

/// An ordered set of OSDs. Inline for all usual pool sizes.
pub type OsdSet = SmallVec<[i32; 12]>;

/// Why a PG could not be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("crush rule {0} does not exist")]
    NoRule(u32),
    #[error("crush rule {rule} is malformed at step {step}")]
    BadRule { rule: u32, step: usize },
    #[error("crush rule {0} needs more work than a sane map ever does")]
    TooMuchWork(u32),
}

/// A decoded CRUSH map (`struct crush_map` and `CrushWrapper` of `src/crush`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Map {
    /// Bucket `-1 - i` at index `i`.
    buckets: Vec<Option<Box<Bucket>>>,
    rules: Vec<Option<Rule>>,
    /// As encoded; monitors leave it behind the buckets' contents at times.
    max_devices: i32,
    /// One more than the highest device in any bucket (`crush_finalize`).
    device_limit: i32,
    tunables: Tunables,
    type_names: BTreeMap<i32, String>,
    names: BTreeMap<i32, String>,
    rule_names: BTreeMap<i32, String>,
    /// Device to class.
    item_class: BTreeMap<i32, i32>,
    class_names: BTreeMap<i32, String>,
    /// Bucket to class to the shadow bucket that holds only devices of that class.
    class_buckets: BTreeMap<i32, BTreeMap<i32, i32>>,
    choose_args: BTreeMap<i64, ChooseArgs>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    pub id: i32,
    /// Level of the hierarchy, never 0 (devices).
    pub kind: u16,
    pub hash: u8,
    /// 16.16 fixed point, as all weights.
    pub weight: u32,
    /// Devices (>= 0) and buckets (< 0).
    pub items: Vec<i32>,
    pub alg: Alg,
}

/// How a bucket picks one of its items, with the weights in the form the algorithm wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Alg {
    Uniform {
        item_weight: u32,
    },
    /// Weight of each item, and of it with all before it.
    List {
        weights: Vec<u32>,
        sums: Vec<u32>,
    },
    /// Node weights of a binary tree whose odd nodes are the items.
    Tree {
        nodes: Vec<u32>,
    },
    Straw {
        weights: Vec<u32>,
        straws: Vec<u32>,
    },
    Straw2 {
        weights: Vec<u32>,
    },
}

impl Alg {
    pub fn name(&self) -> &'static str {
        match self {
            Alg::Uniform { .. } => "uniform",
            Alg::List { .. } => "list",
            Alg::Tree { .. } => "tree",
            Alg::Straw { .. } => "straw",
            Alg::Straw2 { .. } => "straw2",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub kind: u8,
    pub min_size: u8,
    pub max_size: u8,
    pub steps: Vec<Step>,
}

/// `enum crush_rule_type`.
pub mod rule_kind {
    pub const REPLICATED: u8 = 1;
    pub const ERASURE: u8 = 3;
    pub const MSR_FIRSTN: u8 = 4;
    pub const MSR_INDEP: u8 = 5;
}

/// One step of a rule (`struct crush_rule_step`). Unknown ops do nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub op: u32,
    pub arg1: i32,
    pub arg2: i32,
}

/// `enum crush_opcodes`.
pub mod op {
    pub const TAKE: u32 = 1;
    pub const CHOOSE_FIRSTN: u32 = 2;
    pub const CHOOSE_INDEP: u32 = 3;
    pub const EMIT: u32 = 4;
    pub const CHOOSELEAF_FIRSTN: u32 = 6;
    pub const CHOOSELEAF_INDEP: u32 = 7;
    pub const SET_CHOOSE_TRIES: u32 = 8;
    pub const SET_CHOOSELEAF_TRIES: u32 = 9;
    pub const SET_CHOOSE_LOCAL_TRIES: u32 = 10;
    pub const SET_CHOOSE_LOCAL_FALLBACK_TRIES: u32 = 11;
    pub const SET_CHOOSELEAF_VARY_R: u32 = 12;
    pub const SET_CHOOSELEAF_STABLE: u32 = 13;
    pub const SET_MSR_DESCENTS: u32 = 14;
    pub const SET_MSR_COLLISION_TRIES: u32 = 15;
    pub const CHOOSE_MSR: u32 = 16;
}

/// Knobs of the mapper, most kept so that old clusters need not move their data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunables {
    pub choose_local_tries: u32,
    pub choose_local_fallback_tries: u32,
    /// Retries, so one less than tries.
    pub choose_total_tries: u32,
    pub chooseleaf_descend_once: u32,
    pub chooseleaf_vary_r: u8,
    pub chooseleaf_stable: u8,
    /// Concerns only the tool that computes straw lengths.
    pub straw_calc_version: u8,
    pub allowed_bucket_algs: u32,
    pub msr: MsrTunables,
}

/// Tries of multi-step retry rules, known since Tentacle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MsrTunables {
    pub descents: u32,
    pub collision_tries: u32,
}

impl MsrTunables {
    /// What maps that do not say get (`CrushWrapper::set_default_msr_tunables`).
    pub const DEFAULT: MsrTunables = MsrTunables {
        descents: 100,
        collision_tries: 100,
    };
}

impl Tunables {
    /// What a map that ends before the tunables was made for (`set_tunables_legacy`).
    pub const LEGACY: Tunables = Tunables {
        choose_local_tries: 2,
        choose_local_fallback_tries: 5,
        choose_total_tries: 19,
        chooseleaf_descend_once: 0,
        chooseleaf_vary_r: 0,
        chooseleaf_stable: 0,
        straw_calc_version: 0,
        allowed_bucket_algs: 1 << 1 | 1 << 2 | 1 << 4,
        msr: MsrTunables::DEFAULT,
    };

    /// The defaults of every release since Jewel (`set_tunables_jewel`).
    pub const JEWEL: Tunables = Tunables {
        choose_local_tries: 0,
        choose_local_fallback_tries: 0,
        choose_total_tries: 50,
        chooseleaf_descend_once: 1,
        chooseleaf_vary_r: 1,
        chooseleaf_stable: 1,
        straw_calc_version: 1,
        allowed_bucket_algs: 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5,
        msr: MsrTunables::DEFAULT,
    };
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables::JEWEL
    }
}

/// Replacement weights and ids for straw2 buckets (`struct crush_choose_arg_map`), sorted by
/// bucket index. Sparse: a map may carry one per pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChooseArgs(Vec<(u32, ChooseArg)>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChooseArg {
    /// Weights by position in the result; positions beyond the last take the last.
    pub weight_set: Vec<Vec<u32>>,
    /// Ids to hash instead of the items' own; empty or one for each item.
    pub ids: Vec<i32>,
}

impl ChooseArgs {
    /// What replaces bucket `id`'s weights and ids, if anything does.
    #[inline]
    pub fn get(&self, id: i32) -> Option<&ChooseArg> {
        let index = (-1 - id) as u32;
        let at = self.0.binary_search_by_key(&index, |e| e.0).ok()?;
        Some(&self.0[at].1)
    }
}

impl Map {
    /// The bucket called `id` (< 0).
    #[inline]
    pub fn bucket(&self, id: i32) -> Option<&Bucket> {
        self.buckets.get(bucket_index(id)?)?.as_deref()
    }

    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().flatten().map(|b| &**b)
    }

    #[inline]
    pub fn rule(&self, id: u32) -> Option<&Rule> {
        self.rules.get(id as usize)?.as_ref()
    }

    pub fn rules(&self) -> impl Iterator<Item = (u32, &Rule)> {
        (0u32..)
            .zip(&self.rules)
            .filter_map(|(i, r)| Some((i, r.as_ref()?)))
    }

    /// One more than the highest device in any bucket.
    pub fn device_limit(&self) -> i32 {
        self.device_limit
    }

    pub fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// Name of a device or bucket.
    pub fn item_name(&self, id: i32) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    pub fn type_name(&self, kind: i32) -> Option<&str> {
        self.type_names.get(&kind).map(String::as_str)
    }

    pub fn rule_name(&self, id: i32) -> Option<&str> {
        self.rule_names.get(&id).map(String::as_str)
    }

    pub fn class_name(&self, class: i32) -> Option<&str> {
        self.class_names.get(&class).map(String::as_str)
    }

    /// Class of a device (`hdd`, `ssd`).
    pub fn device_class(&self, device: i32) -> Option<&str> {
        self.class_name(*self.item_class.get(&device)?)
    }

    /// The shadow bucket that holds only `class` devices of `bucket`.
    pub fn class_bucket(&self, bucket: i32, class: i32) -> Option<i32> {
        self.class_buckets.get(&bucket)?.get(&class).copied()
    }

    /// The weight sets for `pool`, its own or the common ones
    /// (`choose_args_get_with_fallback`).
    #[inline]
    pub fn choose_args(&self, pool: i64) -> Option<&ChooseArgs> {
        if self.choose_args.is_empty() {
            return None;
        }
        self.choose_args
            .get(&pool)
            .or_else(|| self.choose_args.get(&DEFAULT_CHOOSE_ARGS))
    }
}

/// Index of bucket `id` in `Map::buckets`.
#[inline]
fn bucket_index(id: i32) -> Option<usize> {
    // `!id` is `-1 - id` without overflow.
    usize::try_from(!id).ok()
}
