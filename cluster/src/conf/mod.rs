//! ceph.conf, and what the environment and the command line say beside it.
//!
//! A value is looked for on the command line, in the environment (`CEPH_ARGS`, `CEPH_KEYRING`),
//! in the configuration file (`[client.ID]` before `[client]` before `[global]`), in what the
//! monitors sent (`ceph config set`), and last among the defaults: the levels `CONF_CMDLINE` to
//! `CONF_DEFAULT` of `src/common/config.h`. A value that does not parse is an error that names
//! the place it came from. Only what a monitor sent is passed over then, as Ceph does: a mistake
//! in the cluster's database must not take clients down.
//!
//! [`Conf::load`] reads files. Nothing else here does I/O, save [`Conf::credentials`] for the key.

mod args;
mod error;
mod expand;
mod file;
mod key;
mod mon_host;
pub mod options;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub use error::{ConfError, Origin};
pub use key::{Credentials, KeyText};
pub use options::Opt;
pub use value::{AuthMethod, ConMode};

use crate::codec::EntityAddrVec;
use expand::Meta;

/// Where Ceph looks for a configuration file when none is named (`CEPH_CONF_FILE_DEFAULT`,
/// `src/common/config.cc`, less `$data_dir`, which a client has not).
const DEFAULT_PATHS: &str = "/etc/ceph/$cluster.conf,$home/.ceph/$cluster.conf,$cluster.conf";

/// Who we are to the cluster: `client.admin` unless told otherwise (`EntityName`,
/// `src/common/entity_name.h`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// `client`, or a daemon's type.
    pub kind: String,
    pub id: String,
}

impl Name {
    /// Reads `TYPE.ID`.
    pub fn parse(s: &str) -> Result<Name, String> {
        match s.split_once('.') {
            Some((kind, id))
                if matches!(kind, "client" | "mon" | "osd" | "mds" | "mgr" | "auth")
                    && !id.is_empty() =>
            {
                Ok(Name {
                    kind: kind.into(),
                    id: id.into(),
                })
            }
            _ => Err(format!(
                "\"{s}\" is not a name; expected TYPE.ID, such as client.admin"
            )),
        }
    }
}

impl Default for Name {
    fn default() -> Name {
        Name {
            kind: "client".into(),
            id: "admin".into(),
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.kind, self.id)
    }
}

/// What the process tells us of its surroundings.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `CEPH_CONF`.
    pub conf: Option<String>,
    /// `CEPH_ARGS`.
    pub args: Option<String>,
    /// `CEPH_KEYRING`.
    pub keyring: Option<String>,
    /// `HOME`.
    pub home: Option<String>,
    /// The host's name up to its first dot.
    pub host: String,
    pub pid: u32,
}

impl Environment {
    pub fn of_process() -> Environment {
        let var = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
        // NODE_NAME is what a container knows of its host (`ceph_get_hostname`).
        let host = var("NODE_NAME")
            .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
            .unwrap_or_default();
        Environment {
            conf: var("CEPH_CONF"),
            args: var("CEPH_ARGS"),
            keyring: var("CEPH_KEYRING"),
            home: var("HOME"),
            host: host.trim().split('.').next().unwrap_or_default().into(),
            pid: std::process::id(),
        }
    }
}

/// What the command line says, and the environment it was said in.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `--conf`: paths, of which the first that exists is read.
    pub conf: Option<String>,
    /// `--cluster`.
    pub cluster: Option<String>,
    /// `--name`.
    pub name: Option<String>,
    /// `--id`: a name less its `client.`.
    pub id: Option<String>,
    /// Any options by name (`mon_host`, `keyring`, ...); a later one wins.
    pub settings: Vec<(String, String)>,
    pub env: Environment,
}

#[derive(Debug, Clone)]
struct Setting {
    value: String,
    origin: Origin,
}

/// The configuration of one client.
#[derive(Clone)]
pub struct Conf {
    cluster: String,
    name: Name,
    env: Environment,
    path: Option<PathBuf>,
    file: file::File,
    command_line: BTreeMap<String, Setting>,
    environment: BTreeMap<String, Setting>,
    monitors: BTreeMap<String, String>,
}

impl Conf {
    pub fn load(options: &Options) -> Result<Conf, ConfError> {
        Conf::load_with(options, |path| std::fs::read(path))
    }

    /// [`Conf::load`] with a reader of files in place of the file system.
    pub fn load_with(
        options: &Options,
        read: impl Fn(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Conf, ConfError> {
        let from_args = Origin::Environment("CEPH_ARGS");
        let args = args::parse(
            options.env.args.as_deref().unwrap_or_default(),
            &Name::default(),
        )
        .map_err(|what| ConfError::Arguments {
            origin: from_args.clone(),
            what,
        })?;

        let named = options.conf.clone().or(args.conf);
        let cluster = options.cluster.clone().or(args.cluster);
        let mut conf = Conf {
            cluster: cluster.clone().unwrap_or_else(|| "ceph".into()),
            name: own_name(options, args.name)?,
            env: options.env.clone(),
            path: None,
            file: file::File::default(),
            command_line: BTreeMap::new(),
            environment: BTreeMap::new(),
            monitors: BTreeMap::new(),
        };
        conf.read_file(named.as_deref(), args.no_config_file, read)?;
        // A file named NAME.conf names the cluster too (`md_config_t::get_cluster_name`).
        if cluster.is_none()
            && named.is_some()
            && let Some(path) = &conf.path
            && path.extension().is_some_and(|e| e == "conf")
            && let Some(stem) = path.file_stem().and_then(|s| s.to_str())
        {
            conf.cluster = stem.to_string();
        }
        if let Some(keyring) = &options.env.keyring {
            let origin = Origin::Environment("CEPH_KEYRING");
            put(&mut conf.environment, "keyring", keyring.clone(), origin);
        }
        for (key, value) in args.settings {
            put(&mut conf.environment, &key, value, from_args.clone());
        }
        for (key, value) in &options.settings {
            let key = file::normalize_key(key);
            put(
                &mut conf.command_line,
                &key,
                value.clone(),
                Origin::CommandLine,
            );
        }
        Ok(conf)
    }

    fn read_file(
        &mut self,
        named: Option<&str>,
        no_default: bool,
        read: impl Fn(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<(), ConfError> {
        let named = named.or(self.env.conf.as_deref());
        let paths = match named {
            Some(paths) => paths,
            None if no_default => return Ok(()),
            None => DEFAULT_PATHS,
        };
        let paths: Vec<PathBuf> = paths
            .split([';', ','])
            .map(str::trim)
            .filter(|p| !p.is_empty())
            // Without a home there is nothing in it.
            .filter(|p| self.env.home.is_some() || !p.contains("$home"))
            .map(|p| PathBuf::from(self.expand(p)))
            .collect();
        let mut unreadable = None;
        for path in &paths {
            match read(path) {
                Ok(bytes) => {
                    self.file = file::File::parse(&bytes).map_err(|e| ConfError::Syntax {
                        path: path.clone(),
                        line: e.line,
                        what: e.what,
                    })?;
                    self.path = Some(path.clone());
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    unreadable.get_or_insert(ConfError::Read {
                        path: path.clone(),
                        error,
                    });
                }
            }
        }
        match unreadable {
            Some(error) => Err(error),
            // Options may say all there is to say; a file that was named must exist.
            None if named.is_none() => Ok(()),
            None => Err(ConfError::NotFound {
                tried: join(&paths),
            }),
        }
    }

    /// Takes the options that the monitors hold for this client (`MConfig`), in place of those
    /// they sent before. Returns the names of those that are passed over because their value does
    /// not parse.
    pub fn set_from_monitors(&mut self, values: BTreeMap<String, String>) -> Vec<String> {
        let mut refused = Vec::new();
        self.monitors = values
            .into_iter()
            .map(|(key, value)| (file::normalize_key(&key), value))
            .filter(|(key, value)| match options::known(key) {
                Some(known) if !known.from_monitors => false,
                Some(known) => {
                    let ok = (known.check)(value).is_ok();
                    if !ok {
                        refused.push(key.clone());
                    }
                    ok
                }
                None => true,
            })
            .collect();
        refused
    }

    /// Fails if any option we know has a value that does not parse.
    pub fn check(&self) -> Result<(), ConfError> {
        for known in options::KNOWN {
            let (value, origin) = self.value(known.name, known.default);
            (known.check)(&value)
                .map_err(|what| bad_value(known.name, value.clone(), origin, what))?;
        }
        self.mon_hosts_if_any().map(drop)
    }

    pub fn name(&self) -> &Name {
        &self.name
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// This host's name up to its first dot, or what `host` says.
    pub fn host(&self) -> String {
        let (host, _) = self.text(&options::HOST);
        match host.is_empty() {
            true => self.env.host.clone(),
            false => host,
        }
    }

    /// The file that was read.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub fn get<T>(&self, option: &Opt<T>) -> Result<T, ConfError> {
        let (value, origin) = self.text(option);
        (option.parse)(&value).map_err(|what| bad_value(option.name, value.clone(), origin, what))
    }

    /// The monitors that `mon_host` lists, by the addresses that we can dial.
    pub fn mon_hosts(&self) -> Result<Vec<EntityAddrVec>, ConfError> {
        let mons = self.mon_hosts_if_any()?;
        if !mons.is_empty() {
            return Ok(mons);
        }
        let searched = match &self.path {
            Some(path) => path.display().to_string(),
            None => {
                let paths = DEFAULT_PATHS.split(',').map(|p| self.expand(p));
                paths.collect::<Vec<_>>().join(" or ")
            }
        };
        Err(ConfError::NoMonitors { searched })
    }

    fn mon_hosts_if_any(&self) -> Result<Vec<EntityAddrVec>, ConfError> {
        let (value, origin) = self.text(&options::MON_HOST);
        mon_host::parse(&value)
            .map_err(|what| bad_value(options::MON_HOST.name, value.clone(), origin, what))
    }

    /// The expanded text of an option and where it comes from.
    fn text<T>(&self, option: &Opt<T>) -> (String, Origin) {
        self.value(option.name, option.default)
    }

    fn value(&self, name: &str, default: &str) -> (String, Origin) {
        let (raw, origin) = self
            .raw(name)
            .unwrap_or_else(|| (default.to_string(), Origin::Default));
        (self.expand(&raw), origin)
    }

    fn raw(&self, name: &str) -> Option<(String, Origin)> {
        for level in [&self.command_line, &self.environment] {
            if let Some(s) = level.get(name) {
                return Some((s.value.clone(), s.origin.clone()));
            }
        }
        let own = self.name.to_string();
        if let Some(entry) = self.file.get(&[&own, &self.name.kind, "global"], name) {
            let origin = Origin::File {
                path: self.path.clone().unwrap_or_default(),
                line: entry.line,
            };
            return Some((entry.value.clone(), origin));
        }
        let value = self.monitors.get(name)?;
        Some((value.clone(), Origin::Monitors))
    }

    fn expand(&self, text: &str) -> String {
        expand::expand(text, &|name| {
            Some(match name {
                "cluster" => Meta::Text(self.cluster.clone()),
                "type" => Meta::Text(self.name.kind.clone()),
                "id" | "num" => Meta::Text(self.name.id.clone()),
                "name" => Meta::Text(self.name.to_string()),
                "pid" => Meta::Text(self.env.pid.to_string()),
                // Ceph's is the address of its context, of which we have one per process.
                "cctid" => Meta::Text(self.env.pid.to_string()),
                "home" => Meta::Text(self.env.home.clone().unwrap_or_default()),
                "host" => match self.raw("host").filter(|(host, _)| !host.is_empty()) {
                    Some((host, _)) => Meta::Text(host),
                    None => Meta::Text(self.env.host.clone()),
                },
                _ => {
                    let known = options::known(name).map(|k| k.default.to_string());
                    Meta::Nested(self.raw(name).map(|(value, _)| value).or(known)?)
                }
            })
        })
    }
}

/// Settings may hold a secret, so they are not shown.
impl std::fmt::Debug for Conf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conf")
            .field("cluster", &self.cluster)
            .field("name", &self.name)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Origin {
    /// A higher one is looked at first.
    fn rank(&self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::Monitors => 1,
            Origin::File { .. } => 2,
            Origin::Environment(_) => 3,
            Origin::CommandLine => 4,
        }
    }
}

/// The command line's name, completed from or else replaced by that of `CEPH_ARGS`.
fn own_name(options: &Options, from_args: Option<Name>) -> Result<Name, ConfError> {
    let mut name = from_args.unwrap_or_default();
    let refuse = |what| ConfError::Arguments {
        origin: Origin::CommandLine,
        what,
    };
    if let Some(full) = &options.name {
        name = Name::parse(full).map_err(refuse)?;
    }
    if let Some(id) = &options.id {
        if id.is_empty() {
            return Err(refuse(
                "--id is empty; expected a name such as admin".into(),
            ));
        }
        name.id.clone_from(id);
    }
    Ok(name)
}

fn put(level: &mut BTreeMap<String, Setting>, key: &str, value: String, origin: Origin) {
    level.insert(key.to_string(), Setting { value, origin });
}

fn bad_value(option: &str, value: String, origin: Origin, what: String) -> ConfError {
    ConfError::Value {
        origin,
        option: option.to_string(),
        value,
        what,
    }
}

fn join(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    paths.join(", ")
}
