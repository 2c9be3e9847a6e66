use super::*;
use std::time::Duration;

/// A file system of one or two files.
fn files<'a>(list: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> io::Result<Vec<u8>> + 'a {
    move |path| match list.iter().find(|(p, _)| Path::new(p) == path) {
        Some((_, "denied")) => Err(io::ErrorKind::PermissionDenied.into()),
        Some((_, text)) => Ok(text.as_bytes().to_vec()),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

fn env() -> Environment {
    Environment {
        home: Some("/home/me".into()),
        host: "node7".into(),
        pid: 4711,
        ..Environment::default()
    }
}

fn options() -> Options {
    Options {
        env: env(),
        ..Options::default()
    }
}

fn load(options: &Options, text: &str) -> Conf {
    Conf::load_with(options, files(&[("/etc/ceph/ceph.conf", text)])).unwrap()
}

#[test]
fn sections_of_the_client_come_before_the_general_ones() {
    let text = "[global]\nclient mount timeout = 1\nrados mon op timeout = 1\n\
                rados osd op timeout = 1\n[client]\nrados_mon_op_timeout = 2\n\
                rados_osd_op_timeout = 2\n[client.vm]\nrados-osd-op-timeout = 3\n";
    let mut o = options();
    o.id = Some("vm".into());
    let conf = load(&o, text);
    let secs = |opt: &Opt<Duration>| conf.get(opt).map(|d| d.as_secs()).unwrap();
    assert_eq!(secs(&options::CLIENT_MOUNT_TIMEOUT), 1);
    assert_eq!(secs(&options::RADOS_MON_OP_TIMEOUT), 2);
    assert_eq!(secs(&options::RADOS_OSD_OP_TIMEOUT), 3);
    assert_eq!(
        load(&options(), text)
            .get(&options::RADOS_OSD_OP_TIMEOUT)
            .unwrap(),
        Duration::from_secs(2)
    );
}

#[test]
fn levels_override_each_other_from_default_to_command_line() {
    let mut o = options();
    let pool = |conf: &Conf| conf.get(&options::RBD_DEFAULT_POOL).unwrap();
    let sent = |value: &str| BTreeMap::from([("rbd_default_pool".to_string(), value.to_string())]);

    let mut conf = load(&o, "");
    assert_eq!(pool(&conf), "rbd");
    assert!(conf.set_from_monitors(sent("mon")).is_empty());
    assert_eq!(pool(&conf), "mon");

    let mut conf = load(&o, "[client]\nrbd default pool = file\n");
    conf.set_from_monitors(sent("mon"));
    assert_eq!(pool(&conf), "file");

    o.env.args = Some("--rbd-default-pool=env".into());
    assert_eq!(
        pool(&load(&o, "[client]\nrbd default pool = file\n")),
        "env"
    );
    o.settings.push(("rbd-default-pool".into(), "cli".into()));
    assert_eq!(
        pool(&load(&o, "[client]\nrbd default pool = file\n")),
        "cli"
    );
}

#[test]
fn monitors_neither_move_us_to_another_cluster_nor_break_us() {
    let mut conf = load(&options(), "[global]\nmon_host = 10.0.0.1\n");
    let refused = conf.set_from_monitors(BTreeMap::from([
        ("mon_host".to_string(), "10.9.9.9".to_string()),
        ("keyring".to_string(), "/tmp/evil".to_string()),
        ("rados_osd_op_timeout".to_string(), "soon".to_string()),
        ("objecter_inflight_ops".to_string(), "2K".to_string()),
    ]));
    assert_eq!(refused, ["rados_osd_op_timeout"]);
    assert_eq!(
        conf.mon_hosts().unwrap()[0].to_string(),
        "[v2:10.0.0.1:3300/0]"
    );
    assert_eq!(
        conf.get(&options::RADOS_OSD_OP_TIMEOUT).unwrap(),
        Duration::ZERO
    );
    assert_eq!(conf.get(&options::OBJECTER_INFLIGHT_OPS).unwrap(), 2000);
    // What they no longer send is no longer set.
    conf.set_from_monitors(BTreeMap::new());
    assert_eq!(conf.get(&options::OBJECTER_INFLIGHT_OPS).unwrap(), 1024);
}

#[test]
fn a_bad_value_names_file_and_line() {
    let conf = load(&options(), "[global]\n\nrados_osd_op_timeout = soon\n");
    let e = conf.get(&options::RADOS_OSD_OP_TIMEOUT).unwrap_err();
    assert_eq!(
        e.to_string(),
        "/etc/ceph/ceph.conf:3: rados_osd_op_timeout = \"soon\": expected a duration, such as \
         30, 5m or 1h 30m"
    );
    assert_eq!(conf.check().unwrap_err().to_string(), e.to_string());
    let conf = load(&options(), "[global]\nmon_host = ceph1\n");
    let e = conf.check().unwrap_err().to_string();
    assert!(
        e.starts_with("/etc/ceph/ceph.conf:2: mon_host = \"ceph1\": \"ceph1\" is not"),
        "{e}"
    );
    assert!(load(&options(), "").check().is_ok());
}

#[test]
fn files_are_looked_for_in_ceph_s_order() {
    let list = [
        (
            "/home/me/.ceph/ceph.conf",
            "[global]\nmon_host = 10.0.0.1\n",
        ),
        ("ceph.conf", "[global]\nmon_host = 10.0.0.2\n"),
        ("/x/west.conf", "[global]\nmon_host = 10.0.0.3\n"),
        ("/etc/ceph/east.conf", "[global]\nmon_host = 10.0.0.4\n"),
        ("/etc/ceph/locked.conf", "denied"),
    ];
    let load = |o: &Options| Conf::load_with(o, files(&list));
    let mut o = options();
    let conf = load(&o).unwrap();
    assert_eq!(conf.path().unwrap(), Path::new("/home/me/.ceph/ceph.conf"));
    o.env.home = None;
    let conf = load(&o).unwrap();
    assert_eq!(conf.path().unwrap(), Path::new("ceph.conf"));

    o.env.conf = Some("/nowhere.conf;/x/west.conf".into());
    let conf = load(&o).unwrap();
    assert_eq!(
        (conf.cluster(), conf.path().unwrap()),
        ("ceph", Path::new("/x/west.conf"))
    );
    o.conf = Some("/x/west.conf".into());
    assert_eq!(load(&o).unwrap().cluster(), "west");
    o.conf = None;
    o.env.conf = None;
    o.env.args = Some("--cluster east".into());
    let conf = load(&o).unwrap();
    assert_eq!(
        (conf.cluster(), conf.path().unwrap()),
        ("east", Path::new("/etc/ceph/east.conf"))
    );

    o.conf = Some("/nowhere.conf".into());
    assert_eq!(
        load(&o).unwrap_err().to_string(),
        "no configuration file found (looked for /nowhere.conf); name one with --conf"
    );
    o.conf = None;
    o.cluster = Some("locked".into());
    let e = load(&o).unwrap_err().to_string();
    assert!(e.starts_with("cannot read /etc/ceph/locked.conf: "), "{e}");
}

#[test]
fn a_syntax_error_names_file_and_line() {
    let read = files(&[("/etc/ceph/ceph.conf", "[global]\nmon_host\n")]);
    let e = Conf::load_with(&options(), read).unwrap_err();
    assert_eq!(
        e.to_string(),
        "/etc/ceph/ceph.conf:2: expected \"key = value\" or \"[section]\""
    );
}

#[test]
fn no_file_is_fine_until_monitors_are_needed() {
    let conf = Conf::load_with(&options(), files(&[])).unwrap();
    let e = conf.mon_hosts().unwrap_err().to_string();
    assert!(
        e.contains("/etc/ceph/ceph.conf or /home/me/.ceph/ceph.conf"),
        "{e}"
    );
    assert!(!e.contains('\n'));
}

#[test]
fn metavariables_name_client_cluster_and_host() {
    let text = "[global]\nrbd_default_pool = $cluster/$type/$id/$name/${host}/$pid/$home/$nope\n\
                rbd_default_data_pool = <$rbd_default_pool>\n";
    let conf = load(&options(), text);
    let want = "ceph/client/admin/client.admin/node7/4711//home/me/$nope";
    assert_eq!(conf.get(&options::RBD_DEFAULT_POOL).unwrap(), want);
    assert_eq!(
        conf.get(&options::RBD_DEFAULT_DATA_POOL).unwrap(),
        format!("<{want}>")
    );
    assert_eq!(load(&options(), "host = other\n").host(), "other");
}

#[test]
fn the_command_line_s_name_wins_over_the_environment_s() {
    let mut o = options();
    o.env.args = Some("--id env".into());
    assert_eq!(load(&o, "").name().to_string(), "client.env");
    o.id = Some("cli".into());
    assert_eq!(load(&o, "").name().to_string(), "client.cli");
    o.id = None;
    o.name = Some("mgr.x".into());
    assert_eq!(load(&o, "").name().to_string(), "mgr.x");
    o.name = Some("x".into());
    let e = Conf::load_with(&o, files(&[])).unwrap_err().to_string();
    assert_eq!(
        e,
        "command line: \"x\" is not a name; expected TYPE.ID, such as client.admin"
    );
    o.name = None;
    o.env.args = Some("--keyring".into());
    let e = Conf::load_with(&o, files(&[])).unwrap_err().to_string();
    assert_eq!(
        e,
        "environment variable CEPH_ARGS: --keyring requires a value"
    );
}

#[test]
fn keys_are_found_where_ceph_finds_them() {
    let list = [
        ("/etc/ceph/ceph.client.admin.keyring", "ring"),
        ("/etc/ceph/keyring", "old ring"),
        ("/k", "filekey\n"),
    ];
    let key = |o: &Options, text: &str| load(o, text).credentials_with(files(&list)).unwrap().key;
    let key_text = |o: &Options, text: &str| match key(o, text).unwrap() {
        KeyText::Key { text, .. } | KeyText::Keyring { text, .. } => text,
    };
    let mut o = options();
    assert_eq!(key_text(&o, ""), "ring");
    assert_eq!(key_text(&o, "keyfile = /k\n"), "filekey");
    assert_eq!(key_text(&o, "keyfile = /k\nkey = inline\n"), "inline");
    o.settings.push(("keyfile".into(), "/k".into()));
    assert_eq!(key_text(&o, "key = inline\n"), "filekey");
    o.settings.clear();
    o.id = Some("other".into());
    assert_eq!(key_text(&o, ""), "old ring");
    o.env.keyring = Some("/etc/ceph/ceph.client.admin.keyring".into());
    assert_eq!(key_text(&o, ""), "ring");
    assert!(key(&o, "auth_client_required = none\n").is_none());
    assert_eq!(
        format!("{:?}", key(&options(), "key = secret\n").unwrap()),
        "Key(from /etc/ceph/ceph.conf:1)"
    );
}

#[test]
fn without_a_key_cephx_is_left_out_or_the_reason_told() {
    let conf = load(&options(), "");
    let c = conf.credentials_with(files(&[])).unwrap();
    assert_eq!(c.methods, [AuthMethod::None]);
    let missing = c.missing.unwrap().to_string();
    assert!(
        missing.starts_with("no key for client.admin: looked for a keyring in"),
        "{missing}"
    );

    let conf = load(
        &options(),
        "auth_client_required = cephx\nkeyring = /a, /b\n",
    );
    let e = conf.credentials_with(files(&[])).unwrap_err().to_string();
    assert!(e.contains("in /a, /b;"), "{e}");
    let e = conf
        .credentials_with(files(&[("/b", "denied")]))
        .unwrap_err();
    assert!(e.to_string().starts_with("cannot read /b: "), "{e}");

    let conf = load(&options(), "auth_supported = none\n");
    let c = conf.credentials_with(files(&[])).unwrap();
    assert_eq!(
        (c.methods, c.missing.is_none()),
        (vec![AuthMethod::None], true)
    );
}

#[test]
fn the_process_knows_its_own_environment() {
    let env = Environment::of_process();
    assert_eq!(env.pid, std::process::id());
    assert!(!env.host.contains('.') && !env.host.contains('\n'));
}
