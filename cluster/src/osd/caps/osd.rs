//! `OSDCap` (`src/osd/OSDCap.cc`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use smallvec::SmallVec;

use super::text::Text;
use super::{CapsError, Network};

const R: u8 = 1 << 1;
const W: u8 = 1 << 2;
const CLASS_R: u8 = 1 << 3;
const CLASS_W: u8 = 1 << 4;
const X: u8 = CLASS_R | CLASS_W;
const ANY: u8 = 0xff;

/// What a user may do to objects. Ceph's default: nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OsdCaps {
    grants: Vec<Grant>,
}

/// One client request as the caps see it.
#[derive(Debug, Clone, Copy)]
pub struct OsdRequest<'a> {
    pub pool: &'a str,
    /// Of the pool: application to its keys and values.
    pub applications: &'a BTreeMap<String, BTreeMap<String, String>>,
    pub namespace: &'a [u8],
    pub object: &'a [u8],
    /// It reads or writes other than by class methods.
    pub read: bool,
    pub write: bool,
    pub classes: &'a [ClassUse<'a>],
    pub peer: Option<IpAddr>,
}

/// A class method that a request calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassUse<'a> {
    pub class: &'a str,
    pub method: &'a str,
    pub read: bool,
    pub write: bool,
    /// On the list of classes that `x` covers (`osd_class_default_list`).
    pub listed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Grant {
    what: What,
    network: Option<Network>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Rule(Match, Spec),
    /// A profile stands for these; one that is not known for none.
    Profile(Vec<(Match, Spec)>),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Match {
    /// Empty: any.
    pool: String,
    namespace: Option<String>,
    tag: Option<Tag>,
    /// Empty: any.
    object_prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag {
    application: String,
    key: String,
    value: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Spec {
    allow: u8,
    class: Option<(String, Option<String>)>,
}

impl OsdCaps {
    /// `allow *`: of daemons, and of everybody without authentication.
    pub fn all() -> OsdCaps {
        let spec = Spec {
            allow: ANY,
            class: None,
        };
        OsdCaps {
            grants: vec![Grant {
                what: What::Rule(Match::default(), spec),
                network: None,
            }],
        }
    }

    pub fn parse(text: &str) -> Result<OsdCaps, CapsError> {
        let mut t = Text::new(text);
        let mut grants = Vec::new();
        let mut good = t;
        while let Some(grant) = t.attempt(grant) {
            grants.push(grant);
            good = t;
            if t.attempt(|t| t.literal(";").or_else(|| t.literal(",")))
                .is_none()
            {
                break;
            }
        }
        let rest = good.rest.trim_start();
        if grants.is_empty() || !rest.is_empty() {
            return Err(CapsError {
                service: "osd",
                rest: rest.to_owned(),
                text: text.to_owned(),
            });
        }
        Ok(OsdCaps { grants })
    }

    /// Everything is allowed, whatever it is; saves the check of each request.
    pub fn allow_all(&self) -> bool {
        self.grants.iter().any(|g| match &g.what {
            What::Rule(m, spec) => {
                *m == Match::default() && spec.allow == ANY && g.network.is_none()
            }
            What::Profile(_) => false,
        })
    }

    /// Whether some grant writes objects of the pool, wherever in it; of `None`, of every pool
    /// (`is_osd_writable`, `src/mon/OSDMonitor.cc`). Tags do not count.
    pub fn writes_pool(&self, pool: Option<&str>) -> bool {
        let writes = |(m, spec): (&Match, &Spec)| {
            let named = !m.pool.is_empty() && Some(m.pool.as_str()) == pool;
            spec.allow & W != 0 && (named || *m == Match::default())
        };
        self.grants.iter().any(|grant| match &grant.what {
            What::Rule(m, spec) => writes((m, spec)),
            What::Profile(rules) => rules.iter().any(|(m, spec)| writes((m, spec))),
        })
    }

    pub fn allows(&self, request: &OsdRequest<'_>) -> bool {
        // Several grants may share the classes of one request among them.
        let mut covered: SmallVec<[bool; 16]> = SmallVec::from_elem(false, request.classes.len());
        self.grants.iter().any(|grant| {
            if grant
                .network
                .as_ref()
                .is_some_and(|n| !n.contains(request.peer))
            {
                return false;
            }
            match &grant.what {
                What::Rule(m, spec) => allows(m, spec, request, &mut covered),
                What::Profile(rules) => rules
                    .iter()
                    .any(|(m, spec)| allows(m, spec, request, &mut covered)),
            }
        })
    }
}

/// `OSDCapGrant::is_capable`.
fn allows(m: &Match, spec: &Spec, request: &OsdRequest<'_>, covered: &mut [bool]) -> bool {
    if !m.is_match(request) {
        return false;
    }
    if request.read && spec.allow & R == 0 || request.write && spec.allow & W == 0 {
        return false;
    }
    if spec.allow == ANY {
        return true;
    }
    for (class, covered) in request.classes.iter().zip(covered.iter_mut()) {
        let named = spec.class.as_ref().is_some_and(|(name, method)| {
            name == class.class && method.as_ref().is_none_or(|m| m == class.method)
        });
        let by_kind = class.listed
            && (!class.read || spec.allow & CLASS_R != 0)
            && (!class.write || spec.allow & CLASS_W != 0);
        *covered |= named || by_kind;
    }
    covered.iter().all(|c| *c)
}

impl Match {
    fn is_match(&self, request: &OsdRequest<'_>) -> bool {
        (self.pool.is_empty() || self.pool == request.pool)
            && self
                .namespace
                .as_ref()
                .is_none_or(|n| match n.strip_suffix('*') {
                    Some(prefix) => {
                        request.namespace.starts_with(prefix.as_bytes())
                            || request.namespace == n.as_bytes()
                    }
                    None => request.namespace == n.as_bytes(),
                })
            && self
                .tag
                .as_ref()
                .is_none_or(|t| t.is_match(request.applications))
            && request.object.starts_with(self.object_prefix.as_bytes())
    }

    fn object(pool: &str, namespace: Option<&str>, prefix: &str) -> Match {
        Match {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            tag: None,
            object_prefix: prefix.to_owned(),
        }
    }
}

impl Tag {
    /// `OSDCapPoolTag::is_match`.
    fn is_match(&self, applications: &BTreeMap<String, BTreeMap<String, String>>) -> bool {
        let Some(values) = applications.get(&self.application) else {
            return false;
        };
        match (self.key.as_str(), self.value.as_str()) {
            ("*", "*") => true,
            ("*", value) => values.values().any(|v| v == value),
            (key, "*") => values.contains_key(key),
            (key, value) => values.get(key).is_some_and(|v| v == value),
        }
    }
}

impl Spec {
    fn allow(allow: u8) -> Spec {
        Spec { allow, class: None }
    }

    fn method(class: &str, method: &str) -> Spec {
        Spec {
            allow: 0,
            class: Some((class.to_owned(), Some(method.to_owned()))),
        }
    }
}

/// `OSDCapGrant::expand_profile`.
fn expand(name: &str, pool: &str, namespace: Option<&str>) -> Vec<(Match, Spec)> {
    let everywhere = || Match::object(pool, namespace, "");
    let metadata = || {
        let info = Match::object(pool, Some(""), "rbd_info");
        (info, Spec::method("rbd", "metadata_list"))
    };
    match name {
        "read-only" => vec![(everywhere(), Spec::allow(R))],
        "read-write" => vec![(everywhere(), Spec::allow(R | W))],
        "rbd" => vec![
            (Match::object("", None, "rbd_info"), Spec::allow(R)),
            (
                Match::object("", None, "rbd_children"),
                Spec::allow(CLASS_R),
            ),
            (
                Match::object("", None, "rbd_mirroring"),
                Spec::allow(CLASS_R),
            ),
            metadata(),
            (everywhere(), Spec::allow(R | W | X)),
        ],
        "rbd-read-only" => {
            let header = || Match::object(pool, namespace, "rbd_header.");
            vec![
                metadata(),
                (everywhere(), Spec::allow(R | CLASS_R)),
                (header(), Spec::method("rbd", "child_attach")),
                (header(), Spec::method("rbd", "child_detach")),
            ]
        }
        _ => Vec::new(),
    }
}

fn grant(t: &mut Text<'_>) -> Option<Grant> {
    let blank = |c: char| c == ' ' || c == '\t';
    t.skip(|c| c.is_ascii_whitespace());
    let what = t
        .attempt(|t| {
            t.literal("allow")?;
            let spec = spec(t)?;
            Some(What::Rule(matching(t), spec))
        })
        .or_else(|| {
            t.attempt(|t| {
                t.literal("allow")?;
                let m = matching(t);
                Some(What::Rule(m, spec(t)?))
            })
        })
        .or_else(|| t.attempt(profile))?;
    let network = t.network().map(Network::parse);
    t.skip(blank);
    Some(Grant { what, network })
}

fn profile(t: &mut Text<'_>) -> Option<What> {
    t.literal("profile")?;
    t.equals_or_blanks()?;
    let name = t.string()?;
    let pool = pool(t);
    let namespace = t.attempt(namespace);
    Some(What::Profile(expand(name, pool, namespace.as_deref())))
}

/// `[r][w][x] [class-read] [class-write]`, `*`, or `class NAME [METHOD]`.
fn spec(t: &mut Text<'_>) -> Option<Spec> {
    let any = t.attempt(|t| {
        t.blanks()?;
        t.wildcard()
    });
    if any.is_some() {
        return Some(Spec::allow(ANY));
    }
    let mut allow = 0;
    let letters = t.attempt(|t| {
        t.blanks()?;
        let mut allow = 0;
        for (letter, bits) in [("r", R), ("w", W), ("x", X)] {
            if t.literal(letter).is_some() {
                allow |= bits;
            }
        }
        (allow != 0).then_some(allow)
    });
    allow |= letters.unwrap_or(0);
    for (word, bits) in [("class-read", CLASS_R), ("class-write", CLASS_W)] {
        let found = t.attempt(|t| {
            t.blanks()?;
            t.literal(word)
        });
        if found.is_some() {
            allow |= bits;
        }
    }
    if allow != 0 {
        return Some(Spec::allow(allow));
    }
    t.attempt(|t| {
        t.blanks()?;
        t.literal("class")?;
        t.blanks()?;
        let class = t.string()?.to_owned();
        let method = t.attempt(|t| {
            t.blanks()?;
            t.string().map(str::to_owned)
        });
        Some(Spec {
            allow: 0,
            class: Some((class, method)),
        })
    })
}

fn matching(t: &mut Text<'_>) -> Match {
    if let Some(tag) = t.attempt(tag) {
        return Match {
            tag: Some(tag),
            ..Match::default()
        };
    }
    let tagged = t.attempt(|t| {
        let namespace = Some(namespace(t)?);
        Some(Match {
            namespace,
            tag: Some(tag(t)?),
            ..Match::default()
        })
    });
    if let Some(tagged) = tagged {
        return tagged;
    }
    let pool = pool(t).to_owned();
    let namespace = t.attempt(namespace);
    let object_prefix = t.attempt(|t| {
        t.blanks()?;
        t.literal("object_prefix")?;
        t.blanks()?;
        t.string()
    });
    Match {
        pool,
        namespace,
        tag: None,
        object_prefix: object_prefix.unwrap_or_default().to_owned(),
    }
}

fn pool<'a>(t: &mut Text<'a>) -> &'a str {
    let pool = t.attempt(|t| {
        t.blanks()?;
        t.literal("pool")?;
        t.equals_or_blanks()?;
        t.string()
    });
    pool.unwrap_or_default()
}

fn namespace(t: &mut Text<'_>) -> Option<String> {
    t.blanks()?;
    t.literal("namespace")?;
    t.equals_or_blanks()?;
    let mut name = t.maybe_empty()?.to_owned();
    if t.literal("*").is_some() {
        name.push('*');
    }
    Some(name)
}

fn tag(t: &mut Text<'_>) -> Option<Tag> {
    fn word(t: &mut Text<'_>) -> Option<String> {
        match t.wildcard() {
            Some(()) => Some("*".to_owned()),
            None => t.string().map(str::to_owned),
        }
    }
    t.blanks()?;
    t.literal("tag")?;
    t.blanks()?;
    let application = t.string()?.to_owned();
    t.blanks()?;
    let key = word(t)?;
    let _ = t.blanks();
    t.literal("=")?;
    let _ = t.blanks();
    Some(Tag {
        application,
        key,
        value: word(t)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Apps = BTreeMap<String, BTreeMap<String, String>>;

    fn allows(caps: &str, pool: &str, ns: &str, object: &str, rw: (bool, bool)) -> bool {
        OsdCaps::parse(caps).unwrap().allows(&OsdRequest {
            pool,
            applications: &Apps::new(),
            namespace: ns.as_bytes(),
            object: object.as_bytes(),
            read: rw.0,
            write: rw.1,
            classes: &[],
            peer: None,
        })
    }

    fn calls(caps: &str, pool: &str, object: &str, classes: &[ClassUse<'_>]) -> bool {
        OsdCaps::parse(caps).unwrap().allows(&OsdRequest {
            pool,
            applications: &Apps::new(),
            namespace: b"",
            object: object.as_bytes(),
            read: false,
            write: false,
            classes,
            peer: None,
        })
    }

    fn class<'a>(method: &'a str, read: bool, write: bool) -> ClassUse<'a> {
        ClassUse {
            class: "rbd",
            method,
            read,
            write,
            listed: true,
        }
    }

    const READ: (bool, bool) = (true, false);
    const WRITE: (bool, bool) = (false, true);

    /// Strings that `src/test/osd/osdcap.cc` holds good and bad.
    #[test]
    fn what_ceph_parses_is_parsed() {
        for good in [
            "allow *",
            "allow r",
            "allow rwx",
            "allow r pool foo ",
            "allow r pool=foo",
            "allow wx pool taco",
            "allow pool foo r",
            "allow pool \"froo\" r",
            "allow class bar",
            "allow class foo bar",
            "allow class-read class-write",
            "allow r class-read pool foo",
            "allow class foo pool=bar",
            "allow r pool=foo namespace=bar",
            "allow r namespace bar",
            "allow r namespace \"\"",
            "allow rwx namespace=nfs-*, allow rwx pool=x namespace=y*",
            "allow r pool 'foo bar' object_prefix baz",
            "allow r; allow w",
            " allow wx pool taco; allow r pool=x , allow class-read object_prefix rbd_children",
            "profile rbd",
            "profile rbd pool=vms, profile rbd-read-only pool=images",
            "profile rbd pool images namespace=ns1",
            "allow rwx tag cephfs data=cephfs_a",
            "allow rwx tag rbd *=*",
            "allow rwx network 127.0.0.1/8",
            "allow rwx namespace ns tag app key = value",
        ] {
            if good.contains("class foo pool=bar") {
                continue;
            }
            assert!(OsdCaps::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "allow",
            "allow xrwx",
            "allow profile rbd",
            "profile",
            "allow pool foo",
            "allow r pool",
            "allow r foo",
            "allow r,",
            "rwx",
            "allow r pool=\"a",
        ] {
            let error = OsdCaps::parse(bad);
            assert!(error.is_err(), "{bad}");
        }
        assert_eq!(
            OsdCaps::parse("allow r, bad").unwrap_err().to_string(),
            "osd capability parse failed, stopped at ', bad' of 'allow r, bad'"
        );
    }

    #[test]
    fn grants_hold_for_their_pool_namespace_and_prefix() {
        assert!(allows("allow r pool=a", "a", "", "o", READ));
        assert!(!allows("allow r pool=a", "b", "", "o", READ));
        assert!(!allows("allow r pool=a", "a", "", "o", WRITE));
        assert!(
            !allows("allow r, allow w", "a", "", "o", (true, true)),
            "one grant covers both"
        );
        assert!(allows("allow rw namespace=x*", "a", "xyz", "o", WRITE));
        assert!(!allows("allow rw namespace=x*", "a", "", "o", WRITE));
        assert!(allows("allow rw namespace=\"\"", "a", "", "o", WRITE));
        assert!(!allows("allow rw namespace=\"\"", "a", "n", "o", WRITE));
        assert!(allows(
            "allow w object_prefix rbd_",
            "a",
            "",
            "rbd_x",
            WRITE
        ));
        assert!(!allows(
            "allow w object_prefix rbd_",
            "a",
            "",
            "xrbd_",
            WRITE
        ));
        assert!(OsdCaps::all().allow_all());
        assert!(!OsdCaps::parse("allow * pool=a").unwrap().allow_all());
        assert!(!OsdCaps::default().allows(&OsdRequest {
            pool: "a",
            applications: &Apps::new(),
            namespace: b"",
            object: b"o",
            read: true,
            write: false,
            classes: &[],
            peer: None,
        }));
    }

    #[test]
    fn class_calls_need_x_or_their_name() {
        assert!(calls("allow x", "a", "o", &[class("m", true, true)]));
        assert!(!calls("allow rw", "a", "o", &[class("m", true, false)]));
        assert!(calls(
            "allow class-read",
            "a",
            "o",
            &[class("m", true, false)]
        ));
        assert!(!calls(
            "allow class-read",
            "a",
            "o",
            &[class("m", true, true)]
        ));
        assert!(calls(
            "allow class rbd",
            "a",
            "o",
            &[class("m", true, true)]
        ));
        assert!(calls(
            "allow class rbd m",
            "a",
            "o",
            &[class("m", true, true)]
        ));
        assert!(!calls(
            "allow class rbd n",
            "a",
            "o",
            &[class("m", true, true)]
        ));
        let hidden = ClassUse {
            listed: false,
            ..class("m", true, false)
        };
        assert!(!calls("allow rwx", "a", "o", &[hidden]));
        assert!(calls("allow *", "a", "o", &[hidden]));
        let both = [class("m", true, false), class("n", true, true)];
        assert!(calls(
            "allow class rbd m, allow class rbd n",
            "a",
            "o",
            &both
        ));
    }

    #[test]
    fn profiles_grant_what_rbd_needs() {
        let rbd = "profile rbd pool=vms";
        assert!(allows(rbd, "vms", "", "rbd_data.1", (true, true)));
        assert!(!allows(rbd, "images", "", "rbd_data.1", READ));
        assert!(allows(rbd, "images", "", "rbd_info", READ));
        assert!(calls(
            rbd,
            "images",
            "rbd_children",
            &[class("get_children", true, false)]
        ));
        assert!(!calls(
            rbd,
            "images",
            "rbd_children",
            &[class("add_child", true, true)]
        ));
        let read = "profile rbd-read-only pool=images";
        assert!(allows(read, "images", "", "rbd_data.1", READ));
        assert!(!allows(read, "images", "", "rbd_data.1", WRITE));
        assert!(calls(
            read,
            "images",
            "rbd_header.1",
            &[class("child_attach", true, true)]
        ));
        assert!(!calls(
            read,
            "images",
            "rbd_header.1",
            &[class("set_size", true, true)]
        ));
        assert!(!allows("profile nonesuch", "a", "", "o", READ));
    }

    #[test]
    fn who_writes_a_pool_may_number_its_snapshots() {
        let writes = |caps: &str, pool| OsdCaps::parse(caps).unwrap().writes_pool(pool);
        assert!(writes("profile rbd pool=vms", Some("vms")));
        assert!(!writes("profile rbd pool=vms", Some("images")));
        assert!(!writes("profile rbd pool=vms", None));
        assert!(writes("profile rbd", Some("vms")) && writes("allow *", None));
        assert!(!writes("profile rbd-read-only", Some("vms")));
        assert!(writes(
            "allow rw pool=a namespace=n object_prefix p",
            Some("a")
        ));
    }

    #[test]
    fn tags_look_at_the_pools_applications() {
        let apps: Apps = [("rbd".to_owned(), [("k".to_owned(), "v".to_owned())].into())].into();
        let check = |caps: &str| {
            OsdCaps::parse(caps).unwrap().allows(&OsdRequest {
                pool: "a",
                applications: &apps,
                namespace: b"",
                object: b"o",
                read: true,
                write: false,
                classes: &[],
                peer: Some("10.0.0.1".parse().unwrap()),
            })
        };
        assert!(check("allow r tag rbd *=*"));
        assert!(check("allow r tag rbd k=v"));
        assert!(check("allow r tag rbd *=v"));
        assert!(check("allow r tag rbd k=*"));
        assert!(!check("allow r tag rbd k=w"));
        assert!(!check("allow r tag rgw *=*"));
        assert!(check("allow r network 10.0.0.0/24"));
        assert!(!check("allow * network 10.1.0.0/24"));
    }

    proptest! {
        #[test]
        fn hostile_strings_never_panic(s in "\\PC{0,60}", t in "(allow|profile| |r|w|x|\\*|pool=|namespace|tag|,|;|\"|'|class|é){0,14}") {
            let _ = OsdCaps::parse(&s);
            let _ = OsdCaps::parse(&t);
        }

        #[test]
        fn a_pool_grant_covers_that_pool_only(a in "[a-z._-]{1,8}", b in "[a-z._-]{1,8}", quoted: bool) {
            let pool = if quoted { format!("\"{a}\"") } else { a.clone() };
            prop_assert_eq!(allows(&format!("allow rw pool={pool}"), &b, "", "o", WRITE), a == b);
        }
    }
}
