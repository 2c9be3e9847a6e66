//! Capability strings of users, and what they allow.

#![no_main]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use arbitrary::Arbitrary;
use cluster::osd::caps::{ClassUse, Command, MonCaps, OsdCaps, OsdRequest};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Asked {
    pool: String,
    namespace: Vec<u8>,
    object: Vec<u8>,
    read: bool,
    write: bool,
    class: (String, String, bool, bool),
    peer: Option<[u8; 4]>,
    args: BTreeMap<String, String>,
}

fuzz_target!(|data: &[u8]| {
    // A line each: the string, and what is asked.
    let split = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let Ok(text) = std::str::from_utf8(&data[..split]) else {
        return;
    };
    let mut rest = arbitrary::Unstructured::new(&data[split..]);
    let Ok(asked) = Asked::arbitrary(&mut rest) else {
        return;
    };
    let peer = asked.peer.map(|ip| IpAddr::V4(Ipv4Addr::from(ip)));
    let (class, method, read, write) = &asked.class;
    let classes = [ClassUse {
        class,
        method,
        read: *read,
        write: *write,
        listed: true,
    }];
    let applications = BTreeMap::from([("rbd".to_owned(), asked.args.clone())]);
    let request = OsdRequest {
        pool: &asked.pool,
        applications: &applications,
        namespace: &asked.namespace,
        object: &asked.object,
        read: asked.read,
        write: asked.write,
        classes: &classes,
        peer,
    };
    // The more is asked, the less is allowed.
    let more = OsdRequest {
        read: true,
        write: true,
        ..request
    };
    match OsdCaps::parse(text) {
        Ok(caps) => {
            assert!(caps.allows(&request) || !caps.allows(&more), "{text}");
            assert!(!caps.allow_all() || caps.allows(&more), "{text}");
            assert!(!caps.writes_pool(None) || caps.writes_pool(Some(&asked.pool)));
            // What another grant is added to still allows what it allowed.
            if caps.allows(&more) {
                let wider = OsdCaps::parse(&format!("{}, allow r", text.trim_end()));
                assert!(wider.is_ok_and(|c| c.allows(&more)), "{text}");
            }
        }
        Err(e) => assert!(text.ends_with(&e.rest), "{e}"),
    }
    let command = Command {
        service: &asked.pool,
        prefix: class,
        args: &asked.args,
        read: asked.read,
        write: asked.write,
        exec: *read,
        peer,
    };
    if let Ok(caps) = MonCaps::parse(text) {
        let more = Command {
            read: true,
            write: true,
            exec: true,
            ..command
        };
        assert!(caps.allows(&command) || !caps.allows(&more), "{text}");
        assert!(!caps.allow_all() || caps.allows(&more), "{text}");
        let _ = caps.reads(&asked.pool, peer);
    }
});
