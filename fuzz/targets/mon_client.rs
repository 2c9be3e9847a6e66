//! The monitor session's state machine against monitors that say and do anything.

#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;

use arbitrary::Arbitrary;
use cluster::codec::Now;
use cluster::mon::{
    DialError, Incoming, MonAction, MonClient, MonConfig, MonEvent, MonMap, command,
};
use cluster::payload::Payload;
use fuzz::{NOW, SECOND, addrs};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Step {
    Opened(u8),
    Failed(u8, bool),
    Lost,
    Message {
        kind: u8,
        version: u8,
        tid: u8,
        front: Vec<u8>,
        data: Vec<u8>,
    },
    /// An honest map of these monitors.
    Map {
        epoch: u32,
        mons: Vec<u8>,
    },
    KeepaliveAck,
    Wait(u32),
    Command,
    GetVersion,
    PoolOp(u32, u64),
    Cancel(u8),
    Subscribe(u32, bool),
    GotMap(u32),
    Auth(Vec<u8>),
}

const KINDS: [u16; 8] = [4, 16, 18, 20, 48, 51, 62, 41];

fuzz_target!(|input: (u64, Vec<Step>)| {
    let (seed, steps) = input;
    let config = MonConfig {
        op_timeout: Duration::from_secs(20),
        ..MonConfig::new((1..4).map(addrs).collect(), "node7".into())
    };
    let mut client = MonClient::new(config, seed);
    let mut at = NOW;
    let mut dialed: Vec<u64> = Vec::new();
    let mut waiting: BTreeSet<u64> = BTreeSet::new();
    client.start(at);
    for (token, step) in steps.into_iter().enumerate() {
        let token = token as u64;
        let attempt = |n: u8| dialed.get(usize::from(n) % dialed.len().max(1)).copied();
        let session = client.session().unwrap_or(0);
        match step {
            Step::Opened(n) => client.dialed_ok(attempt(n).unwrap_or(9), at),
            Step::Failed(n, denied) => {
                let error = match denied {
                    true => DialError::Denied("no".into()),
                    false => DialError::Unreachable("gone".into()),
                };
                client.dial_failed(attempt(n).unwrap_or(9), &error);
            }
            Step::Lost => client.lost(session, "gone", at),
            Step::Message {
                kind,
                version,
                tid,
                front,
                data,
            } => {
                let message = Incoming {
                    kind: KINDS[usize::from(kind) % KINDS.len()],
                    version: version.into(),
                    tid: tid.into(),
                    front: &front,
                    data: &data,
                };
                let _ = client.message(session, &message, at);
            }
            Step::Map { epoch, mons } => {
                let map = MonMap {
                    epoch,
                    mons: mons
                        .iter()
                        .take(20)
                        .map(|n| {
                            let info = cluster::mon::MonInfo {
                                addrs: addrs(*n),
                                priority: u16::from(*n) % 3,
                                ..Default::default()
                            };
                            (format!("m{n}"), info)
                        })
                        .collect(),
                    ..MonMap::default()
                };
                let (mut bytes, mut front) = (Vec::new(), Vec::new());
                map.encode(&mut bytes);
                cluster::codec::Put::put_blob(&mut front, &bytes);
                let message = Incoming {
                    kind: 4,
                    version: 1,
                    tid: 0,
                    front: &front,
                    data: &[],
                };
                let _ = client.message(session, &message, at);
            }
            Step::KeepaliveAck => client.keepalive_ack(session, at),
            Step::Wait(millis) => {
                at = Now {
                    mono: at.mono + u64::from(millis % 100_000) * (SECOND / 1000),
                    ..at
                };
                client.tick(at);
            }
            Step::Command => {
                if client
                    .command(token, command::status(), Payload::default(), at)
                    .is_ok()
                {
                    waiting.insert(token);
                }
            }
            Step::GetVersion => {
                if client.get_version(token, "osdmap", at).is_ok() {
                    waiting.insert(token);
                }
            }
            Step::PoolOp(pool, snap) => {
                if client.pool_op(token, pool, 0x11, snap, at).is_ok() {
                    waiting.insert(token);
                }
            }
            Step::Cancel(n) => {
                client.cancel(n.into());
                waiting.remove(&n.into());
            }
            Step::Subscribe(start, onetime) => client.subscribe_osdmap(start, onetime),
            Step::GotMap(epoch) => client.got_osdmap(epoch),
            Step::Auth(payload) => {
                client.send_auth(2, payload);
            }
        }
        drain(&mut client, &mut dialed, &mut waiting);
        if let Some(next) = client.next_deadline() {
            assert!(next >= NOW.mono);
        }
        let _ = client.troubles();
    }
    client.close();
    drain(&mut client, &mut dialed, &mut waiting);
    assert!(
        waiting.is_empty(),
        "requests without an answer: {waiting:?}"
    );
    assert_eq!(client.next_deadline(), None);
});

fn drain(client: &mut MonClient, dialed: &mut Vec<u64>, waiting: &mut BTreeSet<u64>) {
    while let Some(action) = client.poll() {
        match action {
            MonAction::Dial { attempt, .. } => {
                if dialed.len() >= 8 {
                    dialed.remove(0);
                }
                dialed.push(attempt);
            }
            MonAction::Hangup { attempt } => dialed.retain(|a| *a != attempt),
            MonAction::Send { attempt, .. } | MonAction::Keepalive { attempt } => {
                assert_eq!(client.session(), Some(attempt), "sent without a session");
            }
        }
    }
    while let Some(event) = client.poll_event() {
        if let MonEvent::CommandDone { token, .. }
        | MonEvent::Version { token, .. }
        | MonEvent::PoolOpDone { token, .. } = event
        {
            assert!(waiting.remove(&token), "request {token} answered twice");
        }
    }
}
