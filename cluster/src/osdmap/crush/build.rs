//! A map made from scratch, for the single-node server.

use std::collections::BTreeMap;

use super::{Alg, Bucket, Map, Rule, Step, Tunables, op, rule_kind};

/// `CrushWrapper`'s types of a new cluster (`OSDMap::_build_crush_types`).
const TYPES: [&str; 12] = [
    "osd",
    "host",
    "chassis",
    "rack",
    "row",
    "pdu",
    "pod",
    "room",
    "datacenter",
    "zone",
    "region",
    "root",
];
const HOST: u16 = 1;
const ROOT: u16 = 11;

impl Map {
    /// One root, one host, its OSDs with their 16.16 weights, all of one device class, and rule 0,
    /// which keeps copies on different OSDs. Ids are given out as `ceph-mon` does.
    pub fn one_host(host: &str, class: &str, osds: &[(i32, u32)]) -> Map {
        let weights: Vec<u32> = osds.iter().map(|o| o.1).collect();
        let total = weights.iter().fold(0u32, |sum, w| sum.saturating_add(*w));
        let bucket = |id, kind, items: Vec<i32>, weights: Vec<u32>| {
            Some(Box::new(Bucket {
                id,
                kind,
                hash: 0,
                weight: total,
                items,
                alg: Alg::Straw2 { weights },
            }))
        };
        let items: Vec<i32> = osds.iter().map(|o| o.0).collect();
        // A class has a shadow of each bucket.
        let (root, root_shadow, host_id, host_shadow) = (-1, -2, -3, -4);
        let max_devices = items.iter().map(|id| id + 1).max().unwrap_or(0);
        let mut names: BTreeMap<i32, String> =
            items.iter().map(|id| (*id, format!("osd.{id}"))).collect();
        names.insert(root, "default".to_owned());
        names.insert(root_shadow, format!("default~{class}"));
        names.insert(host_id, host.to_owned());
        names.insert(host_shadow, format!("{host}~{class}"));
        let steps = [
            (op::TAKE, root, 0),
            (op::CHOOSE_FIRSTN, 0, 0),
            (op::EMIT, 0, 0),
        ];
        Map {
            buckets: vec![
                bucket(root, ROOT, vec![host_id], vec![total]),
                bucket(root_shadow, ROOT, vec![host_shadow], vec![total]),
                bucket(host_id, HOST, items.clone(), weights.clone()),
                bucket(host_shadow, HOST, items.clone(), weights),
            ],
            rules: vec![Some(Rule {
                kind: rule_kind::REPLICATED,
                min_size: 1,
                max_size: 10,
                steps: steps
                    .into_iter()
                    .map(|(op, arg1, arg2)| Step { op, arg1, arg2 })
                    .collect(),
            })],
            max_devices,
            device_limit: max_devices,
            tunables: Tunables::JEWEL,
            type_names: (0..).zip(TYPES).map(|(i, n)| (i, n.to_owned())).collect(),
            names,
            rule_names: [(0, "replicated_rule".to_owned())].into(),
            item_class: items.iter().map(|id| (*id, 0)).collect(),
            class_names: [(0, class.to_owned())].into(),
            class_buckets: [
                (root, [(0, root_shadow)].into()),
                (host_id, [(0, host_shadow)].into()),
            ]
            .into(),
            choose_args: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_map_is_one_that_decodes() {
        let osds: Vec<(i32, u32)> = (0..5).map(|id| (id, 0x10000 + id as u32)).collect();
        let map = Map::one_host("here", "ssd", &osds);
        let mut bytes = Vec::new();
        map.encode(&mut bytes, false);
        assert_eq!(Map::decode(&bytes).unwrap(), map);
        assert_eq!(map.device_class(3), Some("ssd"));
    }
}
