//! Faults as the command line writes them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::osd::faults::{Action, OpClass, Rule, When};
use serde::{Deserialize, Serialize};

use crate::cli::FaultArgs;

/// A fault on its way to the cluster, with the pool's name still to be looked up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spec {
    op: String,
    action: String,
    pub(super) pool: Option<String>,
    object: String,
    per_million: u32,
    count: Option<u32>,
    after: bool,
    pub(super) osd: Option<u32>,
}

impl Spec {
    /// What can be found wrong without a cluster is found here.
    pub(super) fn of(args: &FaultArgs) -> Result<Spec> {
        if !(0.0..=1.0).contains(&args.probability) {
            bail!("--probability must be from 0 to 1");
        }
        let spec = Spec {
            op: args.op.clone(),
            action: args.action.clone(),
            pool: args.pool.clone(),
            object: args.object.clone().unwrap_or_default(),
            per_million: (args.probability * 1e6).round() as u32,
            count: args.count,
            after: args.after,
            osd: args.osd,
        };
        spec.rule(None)?;
        Ok(spec)
    }

    pub(super) fn rule(&self, pool: Option<i64>) -> Result<Rule> {
        Ok(Rule {
            class: class(&self.op)?,
            pool,
            prefix: self.object.clone().into_bytes(),
            per_million: self.per_million,
            count: self.count,
            when: if self.after {
                When::After
            } else {
                When::Before
            },
            action: action(&self.action)?,
        })
    }
}

fn class(text: &str) -> Result<OpClass> {
    Ok(match text {
        "any" => OpClass::Any,
        "read" => OpClass::Read,
        "write" => OpClass::Write,
        "watch" => OpClass::Watch,
        "notify" => OpClass::Notify,
        "list" => OpClass::List,
        "map" => OpClass::Map,
        _ => {
            let rest = text.strip_prefix("call");
            let name = rest.and_then(|r| {
                if r.is_empty() {
                    Some(r)
                } else {
                    r.strip_prefix('=')
                }
            });
            let Some(name) = name else {
                bail!("'{text}' is no class of requests: see `cluster fault add --help`");
            };
            let (class, method) = name.split_once('.').unwrap_or((name, ""));
            OpClass::Call {
                class: class.to_owned(),
                method: method.to_owned(),
            }
        }
    })
}

fn class_text(class: &OpClass) -> String {
    match class {
        OpClass::Any => "any".into(),
        OpClass::Read => "read".into(),
        OpClass::Write => "write".into(),
        OpClass::Watch => "watch".into(),
        OpClass::Notify => "notify".into(),
        OpClass::List => "list".into(),
        OpClass::Map => "map".into(),
        OpClass::Call { class, .. } if class.is_empty() => "call".into(),
        OpClass::Call { class, method } if method.is_empty() => format!("call={class}"),
        OpClass::Call { class, method } => format!("call={class}.{method}"),
    }
}

fn action(text: &str) -> Result<Action> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    Ok(match (name, value) {
        ("drop", None) => Action::Drop,
        ("reset", None) => Action::Reset,
        ("stall", None) => Action::Stall,
        ("delay", Some(ms)) => {
            let ms = ms.strip_suffix("ms").unwrap_or(ms);
            let ms = ms.parse().context("a delay is a number of milliseconds")?;
            Action::Delay(Duration::from_millis(ms))
        }
        ("error", Some(errno)) => Action::Error(errno_of(errno)?),
        _ => bail!("'{text}' is no fault: write delay=MS, drop, reset, error=ERRNO or stall"),
    })
}

fn action_text(action: &Action) -> String {
    match action {
        Action::Drop => "drop".into(),
        Action::Reset => "reset".into(),
        Action::Stall => "stall".into(),
        Action::Delay(d) => format!("delay={}", d.as_millis()),
        Action::Error(errno) => format!("error={errno}"),
    }
}

/// A number, or a name such as `EIO`.
fn errno_of(text: &str) -> Result<i32> {
    use nix::errno::Errno;
    if let Ok(n) = text.parse() {
        return Ok(n);
    }
    let named = (1..134).map(Errno::from_raw);
    let found = named.into_iter().find(|e| format!("{e:?}") == text);
    Ok(found.with_context(|| format!("'{text}' is no errno"))? as i32)
}

/// A fault as `fault ls` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FaultLine {
    osd: u32,
    number: u64,
    op: String,
    action: String,
    pool: Option<i64>,
    object: String,
    probability: String,
    /// How often it still strikes.
    left: Option<u32>,
    after: bool,
}

impl FaultLine {
    pub(super) const HEADER: [&'static str; 9] = [
        "osd",
        "number",
        "op",
        "action",
        "pool",
        "object",
        "probability",
        "left",
        "when",
    ];

    pub(super) fn new(osd: u32, number: u64, rule: &Rule) -> FaultLine {
        FaultLine {
            osd,
            number,
            op: class_text(&rule.class),
            action: action_text(&rule.action),
            pool: rule.pool,
            object: String::from_utf8_lossy(&rule.prefix).into_owned(),
            probability: (f64::from(rule.per_million) / 1e6).to_string(),
            left: rule.count,
            after: rule.when == When::After,
        }
    }

    pub(super) fn row(&self) -> Vec<String> {
        let or_any = |text: Option<String>| text.unwrap_or_else(|| "any".to_owned());
        let object = (!self.object.is_empty()).then(|| format!("{}*", self.object));
        vec![
            self.osd.to_string(),
            self.number.to_string(),
            self.op.clone(),
            self.action.clone(),
            or_any(self.pool.map(|p| p.to_string())),
            or_any(object),
            self.probability.clone(),
            self.left.map_or("always".to_owned(), |n| n.to_string()),
            if self.after { "after" } else { "before" }.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_shown() {
        for (op, act) in [
            ("any", "drop"),
            ("call", "reset"),
            ("call=rbd", "stall"),
            ("call=rbd.get_size", "delay=250"),
            ("notify", "error=5"),
        ] {
            assert_eq!(class_text(&class(op).unwrap()), op);
            assert_eq!(action_text(&action(act).unwrap()), act);
        }
        assert_eq!(action("error=EIO").unwrap(), Action::Error(5));
        assert_eq!(
            action("delay=20ms").unwrap(),
            Action::Delay(Duration::from_millis(20))
        );
        for bad in ["", "error", "delay", "delay=x", "error=EWHAT", "drop=1"] {
            assert!(action(bad).is_err(), "{bad}");
        }
        for bad in ["", "reads", "calls", "call.rbd"] {
            assert!(class(bad).is_err(), "{bad}");
        }
    }
}
