//! Faults on request, for tests of clients.
//!
//! A rule names requests and what becomes of them. Nothing is looked at while there is no rule.

use std::time::Duration;

use crate::objecter::msg::{MOsdOp, OpCode, WatchOp};

use super::random::Random;

/// Number of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// Which requests a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpClass {
    Any,
    /// No operation of it changes anything.
    Read,
    Write,
    /// A call of a class's method; an empty method stands for all.
    Call {
        class: String,
        method: String,
    },
    Watch,
    Notify,
    List,
    /// Not a request: the maps that clients are sent.
    Map,
}

/// When a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before the request is looked at.
    Before,
    /// It has been carried out; the answer suffers.
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Only before; later requests on the same object from the same client wait, too.
    Delay(Duration),
    Drop,
    /// The connection is closed.
    Reset,
    /// Answers with minus this.
    Error(i32),
    /// Only before: the request stays until the rule is released or removed.
    Stall,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub class: OpClass,
    pub pool: Option<i64>,
    /// What the object's name begins with.
    pub prefix: Vec<u8>,
    /// How often it strikes, of a million.
    pub per_million: u32,
    /// How many times it strikes before it is spent.
    pub count: Option<u32>,
    pub when: When,
    pub action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("a request can be delayed or stalled only before it is carried out")]
    TooLate,
    #[error("an error is a number from 1 to 4095")]
    BadErrno,
}

/// The rules of an OSD.
#[derive(Debug)]
pub struct Faults {
    rules: Vec<(RuleId, Rule)>,
    last: u64,
    random: Random,
    /// Rules whose stalled requests go on.
    released: Vec<RuleId>,
}

impl Faults {
    pub(super) fn new(seed: u64) -> Faults {
        Faults {
            rules: Vec::new(),
            last: 0,
            random: Random::new(seed),
            released: Vec::new(),
        }
    }

    pub fn add(&mut self, rule: Rule) -> Result<RuleId, RuleError> {
        match rule.action {
            Action::Delay(_) | Action::Stall if rule.when == When::After => {
                return Err(RuleError::TooLate);
            }
            Action::Error(errno) if !(1..4096).contains(&errno) => {
                return Err(RuleError::BadErrno);
            }
            _ => {}
        }
        self.last += 1;
        let id = RuleId(self.last);
        self.rules.push((id, rule));
        Ok(id)
    }

    pub fn list(&self) -> impl Iterator<Item = (RuleId, &Rule)> {
        self.rules.iter().map(|(id, rule)| (*id, rule))
    }

    /// Lets the requests go on that a rule has stalled; the rule stays. They move at the next tick,
    /// which is due now.
    pub fn release(&mut self, id: RuleId) {
        self.released.push(id);
    }

    /// Whether there was such a rule.
    pub fn remove(&mut self, id: RuleId) -> bool {
        let before = self.rules.len();
        self.rules.retain(|(i, _)| *i != id);
        self.release(id);
        self.rules.len() < before
    }

    pub fn clear(&mut self) {
        // Rules that are spent may have stalled requests, too.
        self.released.extend((1..=self.last).map(RuleId));
        self.rules.clear();
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(super) fn any_released(&self) -> bool {
        !self.released.is_empty()
    }

    pub(super) fn take_released(&mut self) -> Vec<RuleId> {
        std::mem::take(&mut self.released)
    }

    /// What becomes of a request.
    pub(super) fn strike(
        &mut self,
        when: When,
        op: &MOsdOp<'_>,
        data: &[u8],
    ) -> Option<(RuleId, Action)> {
        self.first(|rule| {
            rule.when == when
                && rule.pool.is_none_or(|pool| pool == op.pgid.pg.pool)
                && op.oid.starts_with(&rule.prefix)
                && matches(&rule.class, op, data)
        })
    }

    /// What becomes of maps that a client is to be sent.
    pub(super) fn strike_map(&mut self) -> Option<Action> {
        self.first(|rule| rule.class == OpClass::Map)
            .map(|(_, a)| a)
    }

    fn first(&mut self, wanted: impl Fn(&Rule) -> bool) -> Option<(RuleId, Action)> {
        for (id, rule) in &mut self.rules {
            if rule.count == Some(0) || !wanted(rule) {
                continue;
            }
            if rule.per_million < 1_000_000 {
                let drawn = self.random.next() % 1_000_000;
                if drawn >= u64::from(rule.per_million) {
                    continue;
                }
            }
            if let Some(count) = &mut rule.count {
                *count -= 1;
            }
            return Some((*id, rule.action));
        }
        None
    }
}

fn matches(class: &OpClass, op: &MOsdOp<'_>, data: &[u8]) -> bool {
    let codes = || op.ops.iter().map(|o| o.code);
    let ping = |o: &crate::objecter::msg::OsdOp| {
        o.code == OpCode::WATCH && o.watch().op == WatchOp::Ping as u8
    };
    match class {
        OpClass::Any => true,
        OpClass::Map => false,
        OpClass::Write => op.ops.iter().any(|o| o.code.is_write() && !ping(&o)),
        OpClass::Read => !op.ops.iter().any(|o| o.code.is_write() && !ping(&o)),
        OpClass::Watch => codes().any(|c| c == OpCode::WATCH),
        OpClass::Notify => codes().any(|c| c == OpCode::NOTIFY),
        OpClass::List => codes().any(|c| c == OpCode::PGNLS),
        OpClass::Call { class, method } => op.split(data).any(|part| {
            let Ok((o, input)) = part else {
                return false;
            };
            if o.code != OpCode::CALL {
                return false;
            }
            let (c, m) = (o.call().class_len.into(), o.call().method_len.into());
            let name = |from: usize, len: usize| input.get(from..from + len);
            name(0, c) == Some(class.as_bytes())
                && (method.is_empty() || name(c, m) == Some(method.as_bytes()))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objecter::ObjectOp;
    use crate::objecter::msg::{Locator, OsdFlags, ReqId, SpgId, WireList};
    use crate::payload::Payload;

    fn rule(class: OpClass) -> Rule {
        Rule {
            class,
            pool: None,
            prefix: Vec::new(),
            per_million: 1_000_000,
            count: None,
            when: When::Before,
            action: Action::Drop,
        }
    }

    fn strikes(faults: &mut Faults, name: &[u8], op: &ObjectOp) -> bool {
        let data: Vec<u8> = op.data().iter().flat_map(|p| p.iter().copied()).collect();
        let m = MOsdOp {
            pgid: SpgId::default(),
            hash: 0,
            epoch: 1,
            flags: OsdFlags::NONE,
            reqid: ReqId::default(),
            trace: [0; 24],
            otel: None,
            client_inc: 0,
            mtime: Default::default(),
            locator: Locator {
                pool: 0,
                key: b"",
                namespace: b"",
                hash: -1,
            },
            oid: name,
            ops: WireList::Native(op.ops()),
            snap_id: crate::objecter::msg::NOSNAP,
            snap_seq: 0,
            snaps: WireList::Native(&[]),
            retry_attempt: 0,
            features: 0,
        };
        faults.strike(When::Before, &m, &data).is_some()
    }

    #[test]
    fn a_rule_strikes_what_it_names() {
        let read = ObjectOp::new().read(0, 1);
        let write = ObjectOp::new().write(0, Payload::from(vec![1]));
        let call = ObjectOp::new().call("rbd", "get_id", Payload::default());
        let cases = [
            (OpClass::Any, [true, true, true]),
            (OpClass::Read, [true, false, true]),
            (OpClass::Write, [false, true, false]),
            (OpClass::Watch, [false, false, false]),
            (OpClass::Map, [false, false, false]),
        ];
        for (class, want) in cases {
            let mut f = Faults::new(1);
            f.add(rule(class)).unwrap();
            let got = [&read, &write, &call].map(|op| strikes(&mut f, b"o", op));
            assert_eq!(got, want);
        }
        let call_rule = |class: &str, method: &str| {
            let mut f = Faults::new(1);
            let (class, method) = (class.into(), method.into());
            f.add(rule(OpClass::Call { class, method })).unwrap();
            strikes(&mut f, b"o", &call)
        };
        assert!(call_rule("rbd", "get_id") && call_rule("rbd", ""));
        assert!(!call_rule("rbd", "get") && !call_rule("lock", ""));
    }

    #[test]
    fn names_counts_and_odds_limit_a_rule() {
        let read = ObjectOp::new().read(0, 1);
        let mut f = Faults::new(1);
        let id = f
            .add(Rule {
                prefix: b"rbd_".to_vec(),
                count: Some(2),
                ..rule(OpClass::Any)
            })
            .unwrap();
        assert!(!strikes(&mut f, b"other", &read));
        assert!(strikes(&mut f, b"rbd_1", &read) && strikes(&mut f, b"rbd_2", &read));
        assert!(!strikes(&mut f, b"rbd_3", &read));
        assert!(f.remove(id) && f.is_empty());

        f.add(Rule {
            per_million: 250_000,
            ..rule(OpClass::Any)
        })
        .unwrap();
        let hits = (0..4000).filter(|_| strikes(&mut f, b"o", &read)).count();
        assert!((800..1200).contains(&hits), "{hits} of 4000");
    }

    #[test]
    fn senseless_rules_are_refused() {
        let mut f = Faults::new(1);
        let late = Rule {
            when: When::After,
            action: Action::Stall,
            ..rule(OpClass::Any)
        };
        assert_eq!(f.add(late), Err(RuleError::TooLate));
        let zero = Rule {
            action: Action::Error(0),
            ..rule(OpClass::Any)
        };
        assert_eq!(f.add(zero), Err(RuleError::BadErrno));
        assert!(f.is_empty());
    }
}
