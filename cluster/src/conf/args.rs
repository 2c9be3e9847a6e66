//! Ceph's own command line options, as `CEPH_ARGS` carries them.
//!
//! Names and meaning are those of `ceph_argparse_early_args` (`src/common/ceph_argparse.cc`) and
//! `md_config_t::parse_argv` (`src/common/config.cc`) for clients. Besides the few with a meaning
//! of their own, every configuration option can be given, as `--name value` or `--name=value`.

use super::file::normalize_key;
use super::{Name, options};

/// What a list of arguments says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Args {
    pub(super) conf: Option<String>,
    pub(super) no_config_file: bool,
    pub(super) cluster: Option<String>,
    pub(super) name: Option<Name>,
    /// Options in the order given; a later one wins.
    pub(super) settings: Vec<(String, String)>,
}

/// Reads `text`, split at spaces: `CEPH_ARGS` knows no quoting. `base` is the name that a lone
/// `--id` completes. Words that are no option are skipped, as Ceph skips them.
pub(super) fn parse(text: &str, base: &Name) -> Result<Args, String> {
    let mut args = Args::default();
    let mut words = text.split(' ').filter(|w| !w.is_empty()).peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, None),
        };
        let Some(option) = option_name(flag) else {
            continue;
        };
        if let Some(flag) = lone_flag(&option) {
            match flag {
                Flag::NoConfigFile => args.no_config_file = true,
                Flag::Off(name) => args.settings.push((name, "false".into())),
                Flag::Ignored => {}
            }
            continue;
        }
        let known = options::known(&option);
        let next = |words: &mut std::iter::Peekable<_>| -> Option<String> {
            let word: &str = words.next()?;
            Some(word.to_string())
        };
        let value = match inline {
            Some(value) => value.to_string(),
            None if known.is_some_and(|k| k.flag) => {
                let given = words
                    .peek()
                    .is_some_and(|w| matches!(*w, "true" | "false" | "0" | "1"));
                match given {
                    true => next(&mut words).unwrap_or_default(),
                    false => "true".into(),
                }
            }
            None if known.is_some() || has_value(&option) => {
                next(&mut words).ok_or_else(|| format!("{word} requires a value"))?
            }
            // An option we do not know: what follows is its value unless it looks like an option.
            None if words.peek().is_some_and(|w| !w.starts_with('-')) => {
                next(&mut words).unwrap_or_default()
            }
            None => continue,
        };
        match option.as_str() {
            "conf" => args.conf = Some(value),
            "cluster" => args.cluster = Some(value),
            "id" | "user" => {
                let kind = args.name.as_ref().unwrap_or(base).kind.clone();
                args.name = Some(Name { kind, id: value });
            }
            "name" => args.name = Some(Name::parse(&value)?),
            _ => args.settings.push((option, value)),
        }
    }
    Ok(args)
}

fn has_value(option: &str) -> bool {
    matches!(option, "conf" | "cluster" | "id" | "user" | "name")
}

enum Flag {
    NoConfigFile,
    /// `--no-NAME` of a boolean.
    Off(String),
    Ignored,
}

fn lone_flag(option: &str) -> Option<Flag> {
    match option {
        "no_config_file" => return Some(Flag::NoConfigFile),
        // We always ask the monitors; what they say never overrides what is said here.
        "no_mon_config" | "mon_config" => return Some(Flag::Ignored),
        _ => {}
    }
    let name = option.strip_prefix("no_")?;
    options::known(name)
        .filter(|k| k.flag)
        .map(|_| Flag::Off(name.to_string()))
}

/// The option that a word names, in the form of the configuration file.
fn option_name(flag: &str) -> Option<String> {
    if let Some(long) = flag.strip_prefix("--") {
        return Some(normalize_key(long)).filter(|n| !n.is_empty());
    }
    let long = match flag {
        "-c" => "conf",
        "-n" => "name",
        "-m" => "mon_host",
        "-k" => "keyring",
        "-K" => "keyfile",
        _ => return None,
    };
    Some(long.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn args(text: &str) -> Args {
        parse(text, &Name::default()).unwrap()
    }

    #[test]
    fn names_are_set_whole_or_by_id() {
        let name = |text: &str| args(text).name.unwrap().to_string();
        assert_eq!(name("--id vm"), "client.vm");
        assert_eq!(name("--user=vm"), "client.vm");
        assert_eq!(name("-n client.a.b"), "client.a.b");
        assert_eq!(name("--name mgr.x --id y"), "mgr.y");
        assert!(parse("--name admin", &Name::default()).is_err());
        assert!(parse("--id", &Name::default()).is_err());
    }

    #[test]
    fn options_take_every_form() {
        let a = args(
            "-c /tmp/a.conf --cluster  west -m 10.0.0.1 --mon-host=10.0.0.2 -k /k \
             --rados_osd_op_timeout 30 --ms-crc-data false --ms_crc_header --no-ms-crc-data \
             --debug_ms 1 --log-to-stderr --no-mon-config stray --x=a=b -- --id late",
        );
        assert_eq!(a.conf.as_deref(), Some("/tmp/a.conf"));
        assert_eq!(a.cluster.as_deref(), Some("west"));
        assert_eq!(a.name, None);
        let settings: Vec<_> = a
            .settings
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(
            settings,
            [
                ("mon_host", "10.0.0.1"),
                ("mon_host", "10.0.0.2"),
                ("keyring", "/k"),
                ("rados_osd_op_timeout", "30"),
                ("ms_crc_data", "false"),
                ("ms_crc_header", "true"),
                ("ms_crc_data", "false"),
                ("debug_ms", "1"),
                ("x", "a=b"),
            ]
        );
    }

    #[test]
    fn a_missing_configuration_file_may_be_meant() {
        assert!(args("--no-config-file").no_config_file);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(s in "\\PC{0,60}", t in "[-=a-z ]{0,40}") {
            let _ = parse(&s, &Name::default());
            let _ = parse(&t, &Name::default());
        }
    }
}
