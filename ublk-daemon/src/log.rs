//! Where log lines go: journald under systemd, else standard error.

use std::io::IsTerminal;

use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging at warnings, more with each `verbose`; `UBLK_RBD_LOG` overrides it with a
/// filter. A command that prints a result logs nothing it would also say as an error.
pub fn init(verbose: u8, daemon: bool) {
    let level = match (verbose, daemon) {
        (0, false) => LevelFilter::WARN,
        (0, true) | (1, _) => LevelFilter::INFO,
        (2, _) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = EnvFilter::builder()
        .with_default_directive(level.into())
        .with_env_var("UBLK_RBD_LOG")
        .from_env_lossy();
    let registry = tracing_subscriber::registry().with(filter);
    // Set by systemd for services whose standard error is the journal.
    if std::env::var_os("JOURNAL_STREAM").is_some()
        && let Ok(journal) = tracing_journald::layer()
    {
        registry.with(journal).init();
        return;
    }
    let ansi = std::io::stderr().is_terminal();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(ansi);
    registry.with(layer.with_target(false)).init();
}
