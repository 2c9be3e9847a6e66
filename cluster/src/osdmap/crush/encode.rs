//! `CrushWrapper::encode` for peers of Luminous and later.

use super::decode::{ALG_LIST, ALG_STRAW, ALG_STRAW2, ALG_TREE, ALG_UNIFORM, MAGIC};
use super::{Alg, Bucket, ChooseArgs, Map, Rule};
use crate::codec::Put;
use crate::osdmap::wire::put_map;

impl Map {
    /// `with_msr` is for peers of Tentacle and later that ask for a CRUSH map as such; the ones
    /// inside OSD maps go without.
    pub fn encode(&self, out: &mut Vec<u8>, with_msr: bool) {
        out.put_u32(MAGIC);
        out.put_count(self.buckets.len());
        out.put_count(self.rules.len());
        out.put_i32(self.max_devices);
        for bucket in &self.buckets {
            match bucket {
                Some(b) => put_bucket(out, b),
                None => out.put_u32(0),
            }
        }
        for (id, rule) in (0u8..).zip(&self.rules) {
            match rule {
                Some(rule) => put_rule(out, id, rule),
                None => out.put_u32(0),
            }
        }
        for names in [&self.type_names, &self.names, &self.rule_names] {
            put_map(out, names, |out, id, name| {
                out.put_i32(*id);
                out.put_string(name);
            });
        }
        let t = &self.tunables;
        out.put_u32(t.choose_local_tries);
        out.put_u32(t.choose_local_fallback_tries);
        out.put_u32(t.choose_total_tries);
        out.put_u32(t.chooseleaf_descend_once);
        out.put_u8(t.chooseleaf_vary_r);
        out.put_u8(t.straw_calc_version);
        out.put_u32(t.allowed_bucket_algs);
        out.put_u8(t.chooseleaf_stable);

        put_map(out, &self.item_class, |out, item, class| {
            out.put_i32(*item);
            out.put_i32(*class);
        });
        put_map(out, &self.class_names, |out, class, name| {
            out.put_i32(*class);
            out.put_string(name);
        });
        put_map(out, &self.class_buckets, |out, bucket, shadows| {
            out.put_i32(*bucket);
            put_map(out, shadows, |out, class, shadow| {
                out.put_i32(*class);
                out.put_i32(*shadow);
            });
        });
        put_map(out, &self.choose_args, |out, pool, args| {
            out.put_i64(*pool);
            put_choose_args(out, args);
        });
        if with_msr {
            out.put_u32(t.msr.descents);
            out.put_u32(t.msr.collision_tries);
        }
    }
}

fn put_bucket(out: &mut Vec<u8>, b: &Bucket) {
    let alg = match b.alg {
        Alg::Uniform { .. } => ALG_UNIFORM,
        Alg::List { .. } => ALG_LIST,
        Alg::Tree { .. } => ALG_TREE,
        Alg::Straw { .. } => ALG_STRAW,
        Alg::Straw2 { .. } => ALG_STRAW2,
    };
    out.put_u32(u32::from(alg));
    out.put_i32(b.id);
    out.put_u16(b.kind);
    out.put_u8(alg);
    out.put_u8(b.hash);
    out.put_u32(b.weight);
    out.put_list(b.items.iter(), |out, item| out.put_i32(*item));
    let mut put_pairs = |a: &[u32], b: &[u32]| {
        for (x, y) in a.iter().zip(b) {
            out.put_u32(*x);
            out.put_u32(*y);
        }
    };
    match &b.alg {
        Alg::Uniform { item_weight } => out.put_u32(*item_weight),
        Alg::List { weights, sums } => put_pairs(weights, sums),
        Alg::Straw { weights, straws } => put_pairs(weights, straws),
        Alg::Tree { nodes } => {
            out.put_u8(nodes.len() as u8);
            nodes.iter().for_each(|n| out.put_u32(*n));
        }
        Alg::Straw2 { weights } => weights.iter().for_each(|w| out.put_u32(*w)),
    }
}

fn put_rule(out: &mut Vec<u8>, id: u8, rule: &Rule) {
    out.put_u32(1);
    out.put_count(rule.steps.len());
    out.put_u8(id);
    out.put_u8(rule.kind);
    out.put_u8(rule.min_size);
    out.put_u8(rule.max_size);
    for step in &rule.steps {
        out.put_u32(step.op);
        out.put_i32(step.arg1);
        out.put_i32(step.arg2);
    }
}

fn put_choose_args(out: &mut Vec<u8>, args: &ChooseArgs) {
    out.put_list(args.0.iter(), |out, (index, arg)| {
        out.put_u32(*index);
        out.put_list(arg.weight_set.iter(), |out, weights| {
            out.put_list(weights.iter(), |out, w| out.put_u32(*w));
        });
        out.put_list(arg.ids.iter(), |out, id| out.put_i32(*id));
    });
}
