//! ceph.conf, CEPH_ARGS, mon_host, keyrings and the monitors' options, separated by zero bytes.

#![no_main]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use cluster::conf::{Conf, Environment, Options};
use cluster::mon::MonConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.split(|b| *b == 0);
    let mut text = || {
        parts
            .next()
            .map(|p| String::from_utf8_lossy(p).into_owned())
    };
    let (file, args, mon_host) = (text(), text(), text());
    let (keyring, option, value) = (text(), text(), text());
    let options = Options {
        conf: Some("ceph.conf".into()),
        settings: mon_host
            .map(|h| ("mon_host".into(), h))
            .into_iter()
            .collect(),
        env: Environment {
            args,
            home: Some("/home".into()),
            host: "node7".into(),
            ..Environment::default()
        },
        ..Options::default()
    };
    let read = |path: &Path| match path.extension() {
        Some(e) if e == "conf" => Ok(file.clone().unwrap_or_default().into_bytes()),
        _ => Err(ErrorKind::NotFound.into()),
    };
    let Ok(mut conf) = Conf::load_with(&options, read) else {
        return;
    };
    if let (Some(option), Some(value)) = (option, value) {
        conf.set_from_monitors(BTreeMap::from([(option, value)]));
    }
    let _ = conf.check();
    let _ = conf.mon_hosts();
    let _ = conf.host();
    let _ = MonConfig::from_conf(&conf);
    let _ = conf.credentials_with(|_| match &keyring {
        Some(keyring) => Ok(keyring.clone().into_bytes()),
        None => Err(ErrorKind::NotFound.into()),
    });
});
