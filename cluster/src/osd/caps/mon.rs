//! `MonCap` (`src/mon/MonCap.cc`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::pattern::Pattern;
use super::text::Text;
use super::{CapsError, Network};

const R: u8 = 1 << 1;
const W: u8 = 1 << 2;
const X: u8 = 1 << 3;
const ALL: u8 = R | W | X;
const ANY: u8 = 0xff;

/// What a user may ask of the monitor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MonCaps {
    grants: Vec<Grant>,
}

/// A command as the caps see it. A question that is no command has an empty `prefix`.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    /// The part of the monitor it belongs to: `mon`, `osd`, `auth`, ...
    pub service: &'a str,
    pub prefix: &'a str,
    pub args: &'a BTreeMap<String, String>,
    pub read: bool,
    pub write: bool,
    pub exec: bool,
    pub peer: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Grant {
    what: What,
    network: Option<Network>,
    /// `fsname=` limits it to a file system, of which there is none here.
    fs_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Everything(u8),
    Service(String, u8),
    Command(String, Vec<(String, Constraint)>),
    Profile(Vec<What>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Constraint {
    Equal(String),
    Prefix(String),
    /// `None` where the expression is malformed; it matches nothing then.
    Regex(Option<Pattern>),
}

impl Constraint {
    fn holds(&self, value: &str) -> bool {
        match self {
            Constraint::Equal(v) => v == value,
            Constraint::Prefix(p) => value.starts_with(p),
            Constraint::Regex(p) => p.as_ref().is_some_and(|p| p.matches(value)),
        }
    }
}

impl MonCaps {
    /// `allow *`.
    pub fn all() -> MonCaps {
        MonCaps {
            grants: vec![Grant {
                what: What::Everything(ANY),
                network: None,
                fs_only: false,
            }],
        }
    }

    pub fn parse(text: &str) -> Result<MonCaps, CapsError> {
        let mut t = Text::new(text);
        let mut grants = Vec::new();
        let mut good = t;
        while let Some(grant) = t.attempt(grant) {
            grants.push(grant);
            good = t;
            let more = t.attempt(|t| {
                t.skip(|c| c == ' ');
                t.literal(";").or_else(|| t.literal(","))?;
                t.skip(|c| c == ' ');
                Some(())
            });
            if more.is_none() {
                break;
            }
        }
        if grants.is_empty() || !good.rest.is_empty() {
            return Err(CapsError {
                service: "mon",
                rest: good.rest.to_owned(),
                text: text.to_owned(),
            });
        }
        Ok(MonCaps { grants })
    }

    pub fn allow_all(&self) -> bool {
        self.grants
            .iter()
            .any(|g| g.network.is_none() && g.is_everything())
    }

    /// `MonCap::is_capable`.
    pub fn allows(&self, command: &Command<'_>) -> bool {
        let mut have = 0;
        for grant in &self.grants {
            if grant
                .network
                .as_ref()
                .is_some_and(|n| !n.contains(command.peer))
            {
                continue;
            }
            if grant.is_everything() {
                return true;
            }
            have |= allowed(&grant.what, command);
            if (!command.read || have & R != 0)
                && (!command.write || have & W != 0)
                && (!command.exec || have & X != 0)
            {
                return true;
            }
        }
        false
    }

    /// Whether the user may read what a service tells.
    pub fn reads(&self, service: &str, peer: Option<IpAddr>) -> bool {
        self.allows(&Command {
            service,
            prefix: "",
            args: &BTreeMap::new(),
            read: true,
            write: false,
            exec: false,
            peer,
        })
    }
}

impl Grant {
    fn is_everything(&self) -> bool {
        !self.fs_only && self.what == What::Everything(ANY)
    }
}

/// `MonCapGrant::get_allowed`.
fn allowed(what: &What, command: &Command<'_>) -> u8 {
    match what {
        // Stored secrets are covered by `allow *` alone.
        What::Everything(_) if command.service == "config-key" => 0,
        What::Everything(allow) => *allow,
        What::Service(service, allow) if service == command.service => *allow,
        What::Service(..) => 0,
        What::Command(prefix, constraints) => {
            let holds = prefix == command.prefix
                && constraints
                    .iter()
                    .all(|(name, c)| command.args.get(name).is_some_and(|v| c.holds(v)));
            if holds { ALL } else { 0 }
        }
        What::Profile(grants) => grants.iter().fold(0, |have, g| have | allowed(g, command)),
    }
}

/// `MonCapGrant::expand_profile`, of those profiles that clients and OSDs of this server may have.
fn expand(profile: &str) -> Vec<What> {
    let service = |name: &str, allow| What::Service(name.to_owned(), allow);
    let command = |prefix: &str, constraints: &[(&str, Constraint)]| {
        let owned = constraints
            .iter()
            .map(|(n, c)| ((*n).to_owned(), c.clone()));
        What::Command(prefix.to_owned(), owned.collect())
    };
    let equal = |v: &str| Constraint::Equal(v.to_owned());
    let prefix = |v: &str| Constraint::Prefix(v.to_owned());
    let regex = |v: &str| Constraint::Regex(Pattern::parse(v));
    // Who breaks a lock fences one instance, not a host: address and nonce.
    let blocklist = |op: &str, word: &str| {
        let addr = ("addr", regex("^[^/]+/[0-9]+$"));
        command(op, &[(word, equal("add")), addr])
    };
    let client = || vec![service("mon", R), service("osd", R), service("pg", R)];
    match profile {
        "read-only" => vec![What::Everything(R)],
        "read-write" => vec![What::Everything(R | W)],
        "osd" => vec![
            service("osd", ALL),
            service("mon", R),
            service("pg", R | W),
            service("log", W),
        ],
        "mon" => vec![service("mon", ALL), service("log", ALL)],
        "fs-client" => {
            let mut grants = client();
            grants.push(service("mds", R));
            grants
        }
        "simple-rados-client" => client(),
        "simple-rados-client-with-blocklist" => {
            let mut grants = client();
            grants.push(blocklist("osd blocklist", "blocklistop"));
            grants
        }
        "crash" => vec![service("mon", R)],
        "role-definer" => vec![service("mon", R), service("auth", ALL)],
        "bootstrap-rbd" | "bootstrap-rbd-mirror" => {
            let mon = match profile {
                "bootstrap-rbd" => "profile rbd",
                _ => "profile rbd-mirror",
            };
            let osd = "^([ ,]*profile(=|[ ]+)['\"]?rbd[^ ,'\"]*['\"]?([ ]+pool(=|[ ]+)['\"]?[^,'\"]+['\"]?)?)+$";
            let constraints = [
                ("entity", prefix("client.")),
                ("caps_mon", equal(mon)),
                ("caps_osd", regex(osd)),
            ];
            vec![
                service("mon", R),
                command("auth get-or-create", &constraints),
            ]
        }
        // All of RBD's profiles, `rbd-read-only` and `rbd-mirror` among them.
        rbd if rbd.starts_with("rbd") => {
            let mut grants = client();
            grants.push(blocklist("osd blocklist", "blocklistop"));
            grants.push(blocklist("osd blacklist", "blacklistop"));
            match rbd {
                "rbd-mirror" => {
                    grants.push(command("config-key get", &[("key", prefix("rbd/mirror/"))]));
                }
                "rbd-mirror-peer" => {
                    let any = ("key", regex("rbd/mirror/[^/]+"));
                    grants.push(command("config-key get", &[any]));
                    let peer = ("key", prefix("rbd/mirror/peer/"));
                    grants.push(command("config-key set", &[peer]));
                }
                _ => {}
            }
            grants
        }
        _ => Vec::new(),
    }
}

fn grant(t: &mut Text<'_>) -> Option<Grant> {
    let _ = t.blanks();
    // The order matters: `allow r` before the others, as in Ceph's grammar.
    let what = t
        .attempt(everything)
        .or_else(|| t.attempt(profile))
        .or_else(|| t.attempt(service))
        .or_else(|| t.attempt(command))?;
    let network = t.network().map(Network::parse);
    let fs = matches!(what, What::Everything(_)).then(|| {
        t.attempt(|t| {
            t.blanks()?;
            t.literal("fsname")?;
            t.equals_or_blanks()?;
            t.string()
        })
    });
    let _ = t.blanks();
    Some(Grant {
        what,
        network,
        fs_only: fs.flatten().is_some(),
    })
}

fn everything(t: &mut Text<'_>) -> Option<What> {
    t.literal("allow")?;
    t.blanks()?;
    Some(What::Everything(rwx(t)?))
}

fn profile(t: &mut Text<'_>) -> Option<What> {
    let _ = t.attempt(|t| {
        t.literal("allow")?;
        t.blanks()
    });
    t.literal("profile")?;
    t.equals_or_blanks()?;
    Some(What::Profile(expand(t.string()?)))
}

fn service(t: &mut Text<'_>) -> Option<What> {
    t.literal("allow")?;
    t.blanks()?;
    t.literal("service")?;
    t.equals_or_blanks()?;
    let name = t.string()?.to_owned();
    t.blanks()?;
    Some(What::Service(name, rwx(t)?))
}

fn command(t: &mut Text<'_>) -> Option<What> {
    t.literal("allow")?;
    t.blanks()?;
    t.literal("command")?;
    t.equals_or_blanks()?;
    let prefix = t.string()?.to_owned();
    let constraints = t.attempt(|t| {
        t.blanks()?;
        t.literal("with")?;
        let mut constraints = Vec::new();
        while let Some(c) = t.attempt(|t| {
            t.blanks()?;
            constraint(t)
        }) {
            constraints.push(c);
        }
        (!constraints.is_empty()).then_some(constraints)
    });
    Some(What::Command(prefix, constraints.unwrap_or_default()))
}

fn constraint(t: &mut Text<'_>) -> Option<(String, Constraint)> {
    let name = t.string()?.to_owned();
    if t.literal("=").is_some() {
        return Some((name, Constraint::Equal(t.string()?.to_owned())));
    }
    t.blanks()?;
    let prefix = t.literal("prefix").is_some();
    if !prefix {
        t.literal("regex")?;
    }
    t.blanks()?;
    let value = t.string()?;
    Some((
        name,
        match prefix {
            true => Constraint::Prefix(value.to_owned()),
            false => Constraint::Regex(Pattern::parse(value)),
        },
    ))
}

fn rwx(t: &mut Text<'_>) -> Option<u8> {
    if t.wildcard().is_some() {
        return Some(ANY);
    }
    let mut allow = 0;
    for (letter, bit) in [("r", R), ("w", W), ("x", X)] {
        if t.literal(letter).is_some() {
            allow |= bit;
        }
    }
    (allow != 0).then_some(allow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allows(caps: &str, service: &str, prefix: &str, args: &[(&str, &str)], perm: &str) -> bool {
        let args = args
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect();
        MonCaps::parse(caps).unwrap().allows(&Command {
            service,
            prefix,
            args: &args,
            read: perm.contains('r'),
            write: perm.contains('w'),
            exec: perm.contains('x'),
            peer: Some("10.0.0.1".parse().unwrap()),
        })
    }

    /// Strings that `src/test/mon/moncap.cc` holds good and bad.
    #[test]
    fn what_ceph_parses_is_parsed() {
        for good in [
            "allow *",
            "allow r",
            "allow rwx",
            "allow rwx network 1.2.3.4/24",
            "allow command foo",
            "allow command \"foo bar\"",
            "allow command foo with a=b",
            "allow command foo with a prefix b c regex \"^d+$\"",
            "allow service foo rw; allow service bar x",
            "allow service=foo r ,  allow profile rbd",
            "profile rbd",
            "profile rbd-mirror, allow command \"config-key get\" with key prefix rbd/",
            " allow r ",
            "allow r fsname=a",
        ] {
            assert!(MonCaps::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "allow",
            "allow foo",
            "allow service foo",
            "allow command",
            "profile",
            "r",
            "allow r,",
        ] {
            assert!(MonCaps::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            MonCaps::parse("allow profile").unwrap_err().to_string(),
            "mon capability parse failed, stopped at 'allow profile' of 'allow profile'"
        );
    }

    #[test]
    fn letters_add_up_over_grants() {
        assert!(allows(
            "allow r, allow w",
            "osd",
            "osd pool create",
            &[],
            "rw"
        ));
        assert!(!allows("allow rw", "auth", "auth get", &[], "rx"));
        assert!(!allows(
            "allow rwx",
            "config-key",
            "config-key get",
            &[],
            "r"
        ));
        assert!(allows("allow *", "config-key", "config-key get", &[], "rw"));
        assert!(allows("allow service osd r", "osd", "osd dump", &[], "r"));
        assert!(!allows("allow service osd r", "mon", "mon dump", &[], "r"));
        assert!(!allows("allow * network 10.1.0.0/16", "mon", "", &[], "r"));
        assert!(allows("allow * network 10.0.0.0/16", "mon", "", &[], "r"));
        assert!(!MonCaps::default().reads("mon", None));
        assert!(MonCaps::all().allow_all());
        assert!(!MonCaps::parse("allow * fsname=a").unwrap().allow_all());
    }

    #[test]
    fn an_rbd_user_may_fence_an_instance_and_no_host() {
        let fence = |caps: &str, op: &str, addr: &str| {
            let args = [("blocklistop", op), ("addr", addr)];
            allows(caps, "osd", "osd blocklist", &args, "rw")
        };
        for caps in [
            "profile rbd",
            "allow profile rbd-read-only",
            "profile simple-rados-client-with-blocklist",
        ] {
            assert!(fence(caps, "add", "10.0.0.2:0/77"), "{caps}");
            assert!(!fence(caps, "add", "10.0.0.2"), "{caps}");
            assert!(!fence(caps, "rm", "10.0.0.2:0/77"), "{caps}");
            assert!(allows(caps, "osd", "", &[], "r"));
            assert!(!allows(caps, "osd", "osd pool create", &[], "rw"));
        }
        assert!(!fence(
            "profile simple-rados-client",
            "add",
            "10.0.0.2:0/77"
        ));
        let old = [("blacklistop", "add"), ("addr", "10.0.0.2:0/7")];
        assert!(allows("profile rbd", "osd", "osd blacklist", &old, "rw"));
    }

    #[test]
    fn commands_are_bound_to_their_arguments() {
        let caps = "allow command \"config-key get\" with key prefix rbd/";
        assert!(allows(
            caps,
            "config-key",
            "config-key get",
            &[("key", "rbd/x")],
            "r"
        ));
        assert!(!allows(
            caps,
            "config-key",
            "config-key get",
            &[("key", "x")],
            "r"
        ));
        assert!(!allows(caps, "config-key", "config-key get", &[], "r"));
        assert!(!allows(
            caps,
            "config-key",
            "config-key set",
            &[("key", "rbd/x")],
            "rw"
        ));
        assert!(!allows(
            "allow command a with k regex \"(\"",
            "mon",
            "a",
            &[("k", "(")],
            "r"
        ));
    }

    proptest! {
        #[test]
        fn hostile_strings_never_panic(s in "\\PC{0,60}", t in "(allow|profile| |r|w|x|\\*|service|command|with|=|,|;|\"|regex|prefix|é){0,14}") {
            let _ = MonCaps::parse(&s);
            if let Ok(caps) = MonCaps::parse(&t) {
                let _ = caps.reads("mon", None);
            }
        }
    }
}
