use std::time::Duration;

use super::rig::{Got, Rig, SECOND};
use crate::objecter::ObjectOp;
use crate::osd::faults::{Action, OpClass, Rule, When};
use crate::osdmap::Incremental;
use crate::payload::Payload;

fn rule(class: OpClass, when: When, action: Action) -> Rule {
    Rule {
        class,
        pool: None,
        prefix: Vec::new(),
        per_million: 1_000_000,
        count: Some(1),
        when,
        action,
    }
}

fn append(r: &Rig, tid: u64, name: &str) -> super::rig::Ask {
    r.ask(tid, name, ObjectOp::new().append(Payload::from(vec![b'x'])))
}

fn tids(got: Vec<Got>) -> Vec<u64> {
    got.iter()
        .filter_map(|g| match g {
            Got::Reply { tid, .. } => Some(*tid),
            _ => None,
        })
        .collect()
}

/// Bytes that an object has, or minus an errno.
fn size(r: &mut Rig, name: &str) -> i32 {
    let link = r.open(0, 500);
    let read = r.ask(1, name, ObjectOp::new().read(0, 99));
    let (result, data) = r.call(link, &read);
    if result < 0 {
        result
    } else {
        data.len() as i32
    }
}

#[test]
fn a_delay_holds_back_what_follows_on_the_same_object() {
    let mut r = Rig::new(1, |_| 0);
    let (link, other) = (r.open(0, 10), r.open(0, 11));
    let delay = Action::Delay(Duration::from_secs(2));
    let fault = rule(OpClass::Write, When::Before, delay);
    r.osds[0].faults().add(fault).unwrap();
    for (tid, name) in [(1, "a"), (2, "a"), (3, "b")] {
        let ask = append(&r, tid, name);
        r.send(link, &ask);
    }
    assert_eq!(tids(r.take(link)), [3]);
    let ask = append(&r, 1, "a");
    r.send(other, &ask);
    assert_eq!(tids(r.take(other)), [1]);
    r.advance(SECOND);
    assert!(r.take(link).is_empty());
    r.advance(SECOND);
    assert_eq!(tids(r.take(link)), [1, 2]);
    assert_eq!(size(&mut r, "a"), 3);
    assert_eq!(r.osds[0].waiting(), 0);
}

#[test]
fn a_stall_lasts_until_it_is_released() {
    let mut r = Rig::new(1, |_| 0);
    let link = r.open(0, 10);
    let fault = rule(OpClass::Any, When::Before, Action::Stall);
    let id = r.osds[0].faults().add(fault).unwrap();
    let ask = append(&r, 1, "a");
    r.send(link, &ask);
    r.advance(1000 * SECOND);
    assert!(r.take(link).is_empty());
    r.osds[0].faults().release(id);
    assert_eq!(r.osds[0].next_deadline(), Some(0));
    r.advance(1);
    assert_eq!(tids(r.take(link)), [1]);
    // What stalls when its connection is lost is gone.
    r.osds[0].faults().clear();
    let fault = rule(OpClass::Any, When::Before, Action::Stall);
    let id = r.osds[0].faults().add(fault).unwrap();
    let ask = append(&r, 2, "a");
    r.send(link, &ask);
    r.close(link);
    assert_eq!(r.osds[0].waiting(), 0);
    assert!(r.osds[0].faults().remove(id));
    r.advance(1);
    assert_eq!(size(&mut r, "a"), 1);
}

#[test]
fn a_lost_answer_is_given_again() {
    let mut r = Rig::new(1, |_| 0);
    for (action, name) in [
        (Action::Drop, "a"),
        (Action::Reset, "b"),
        (Action::Error(5), "c"),
    ] {
        let fault = rule(OpClass::Write, When::After, action);
        r.osds[0].faults().add(fault).unwrap();
        let link = r.open(0, 10);
        let ask = append(&r, name.len() as u64 + name.as_bytes()[0] as u64, name);
        r.send(link, &ask);
        let got = r.take(link);
        match action {
            Action::Drop => assert!(got.is_empty()),
            Action::Reset => assert!(matches!(got[..], [Got::Closed])),
            _ => assert!(matches!(got[..], [Got::Reply { result: -5, .. }])),
        }
        let link = r.open(0, 10);
        assert_eq!(r.call(link, &ask).0, 0);
        assert_eq!(size(&mut r, name), 1);
    }
}

#[test]
fn before_means_that_nothing_was_done() {
    let mut r = Rig::new(1, |_| 0);
    for (action, name) in [
        (Action::Drop, "a"),
        (Action::Reset, "b"),
        (Action::Error(5), "c"),
    ] {
        let fault = rule(OpClass::Write, When::Before, action);
        r.osds[0].faults().add(fault).unwrap();
        let link = r.open(0, 10);
        let ask = append(&r, 7, name);
        r.send(link, &ask);
        assert_eq!(size(&mut r, name), -2);
    }
}

#[test]
fn maps_can_be_kept_from_clients() {
    let mut r = Rig::new(1, |_| 0);
    let link = r.open(0, 10);
    let fault = rule(OpClass::Map, When::Before, Action::Drop);
    r.osds[0].faults().add(fault).unwrap();
    let ask = append(&r, 1, "a");
    r.change(Incremental::default());
    r.send(link, &ask);
    assert!(matches!(r.take(link)[..], [Got::Reply { result: 0, .. }]));
}
