use std::path::PathBuf;

/// Where a value came from, as an operator would look for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `FILE:LINE`.
    File {
        path: PathBuf,
        line: usize,
    },
    /// An environment variable.
    Environment(&'static str),
    CommandLine,
    /// The monitors' configuration database (`ceph config set`).
    Monitors,
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Environment(name) => write!(f, "environment variable {name}"),
            Origin::CommandLine => f.write_str("command line"),
            Origin::Monitors => f.write_str("monitors' configuration database"),
            Origin::Default => f.write_str("built-in default"),
        }
    }
}

/// What is wrong with the configuration, and where.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    #[error("{}:{line}: {what}", path.display())]
    Syntax {
        path: PathBuf,
        line: usize,
        what: String,
    },
    #[error("cannot read {}: {error}", path.display())]
    Read {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("no configuration file found (looked for {tried}); name one with --conf")]
    NotFound { tried: String },
    #[error("{origin}: {option} = \"{value}\": {what}")]
    Value {
        origin: Origin,
        option: String,
        value: String,
        what: String,
    },
    #[error("{origin}: {what}")]
    Arguments { origin: Origin, what: String },
    #[error("no monitor addresses: set mon_host in {searched} or give --mon-host")]
    NoMonitors { searched: String },
    #[error(
        "no key for {name}: looked for a keyring in {tried}; give --keyring, or set keyring in \
         the configuration file"
    )]
    NoKey { name: String, tried: String },
}
