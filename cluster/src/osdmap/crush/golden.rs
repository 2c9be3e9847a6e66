//! Placements as `crushtool --test --show-mappings` computed them.

use std::path::PathBuf;

use super::*;

fn golden() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden").into()
}

/// Sections `# rule R num-rep N [weight D=W ...]`, each with lines `CRUSH rule R x X [a,b,c]`.
fn check_mappings(crush: &str, mappings: &str) -> usize {
    let map = Map::decode(&std::fs::read(golden().join(crush)).unwrap()).unwrap();
    let text = std::fs::read_to_string(golden().join(mappings)).unwrap();
    let (mut width, mut weights) = (0, Vec::new());
    let (mut ws, mut got, mut lines) = (Workspace::default(), OsdSet::new(), 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["#", "rule", _, "num-rep", n, ref rest @ ..] => {
                width = n.parse().unwrap();
                weights = vec![0x10000; map.device_limit() as usize];
                for w in rest.iter().skip(1) {
                    let (device, weight) = w.split_once('=').unwrap();
                    let weight: f32 = weight.parse().unwrap();
                    weights[device.parse::<usize>().unwrap()] = (weight * 65536.0) as u32;
                }
            }
            ["CRUSH", "rule", rule, "x", x, want] => {
                let (rule, x) = (rule.parse().unwrap(), x.parse().unwrap());
                let args = map.choose_args(0);
                map.do_rule(rule, x, width, &weights, args, &mut ws, &mut got)
                    .unwrap();
                let got = format!("{got:?}").replace(' ', "");
                assert_eq!(got, want, "{mappings}: {line}, width {width}");
                lines += 1;
            }
            _ => panic!("{mappings}: {line}"),
        }
    }
    lines
}

#[test]
fn every_bucket_algorithm_and_tunables_profile_places_as_crushtool() {
    for alg in ["uniform", "list", "tree", "straw", "straw2"] {
        for profile in ["legacy", "bobtail", "firefly", "hammer", "jewel"] {
            let name = format!("algs/{alg}-{profile}");
            let lines = check_mappings(&format!("{name}.crush"), &format!("{name}.mappings.txt"));
            assert_eq!(lines, 6 * 128, "{name}");
        }
    }
}

#[test]
fn rules_of_real_clusters_place_as_crushtool() {
    for version in ["v16", "v18", "v20"] {
        for (map, rules) in [("simple", 1), ("racks", 5)] {
            let name = format!("{version}/{map}");
            let lines = check_mappings(&format!("{name}.crush"), &format!("{name}.mappings.txt"));
            assert_eq!(lines, rules * 6 * 256, "{name}");
        }
    }
}

#[test]
fn every_map_encodes_to_the_bytes_it_came_from() {
    let mut maps = 0;
    for dir in ["algs", "v16", "v18", "v20"] {
        for entry in std::fs::read_dir(golden().join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "crush") {
                let bytes = std::fs::read(&path).unwrap();
                let mut out = Vec::new();
                Map::decode(&bytes).unwrap().encode(&mut out, dir == "v20");
                assert!(out == bytes, "{}", path.display());
                maps += 1;
            }
        }
    }
    assert_eq!(maps, 25 + 3 * 5);
}

/// Maps and rules made up to reach what clusters rarely use, mapped by Ceph 20's own
/// `src/crush/mapper.c`: multi-step retry rules, well-formed and not, `set_*` steps, choices in
/// several steps, legacy tunables over mixed bucket algorithms, weight sets with ids.
#[test]
fn rare_rules_place_as_ceph_does() {
    for (name, rules) in [
        ("msr-straw2", 6),
        ("msr-mixed", 6),
        ("steps-straw2", 6),
        ("steps-mixed", 6),
        ("weight-sets", 3),
    ] {
        let name = format!("crush/{name}");
        let lines = check_mappings(&format!("{name}.crush"), &format!("{name}.mappings.txt"));
        assert_eq!(lines, rules * 4 * 2 * 32, "{name}");
    }
}
