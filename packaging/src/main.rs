//! Writes `packaging/man` and `packaging/completions` from the definition of the command line.
//! The files are committed; a test here fails when they and the definition differ.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

/// What the definition cannot tell, in the form of the page: it follows the options of the main
/// page.
const MAIN_PAGE: &str = include_str!("ublk-rbd.8.in");
const SECTION: &str = "8";

/// Generated files by their path below `packaging/`.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for dir in ["man", "completions"] {
        match fs::remove_dir_all(root.join(dir)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => fs::create_dir(root.join(dir))?,
        }
    }
    for (path, content) in generate()? {
        fs::write(root.join(path), content)?;
    }
    Ok(())
}

fn generate() -> io::Result<Files> {
    let mut files = Files::new();
    let name = ublk_rbd::cli::Cli::command().get_name().to_owned();
    for (shell, file) in [
        (Shell::Bash, name.clone()),
        (Shell::Zsh, format!("_{name}")),
        (Shell::Fish, format!("{name}.fish")),
    ] {
        let mut script = Vec::new();
        let mut cmd = ublk_rbd::cli::Cli::command();
        clap_complete::generate(shell, &mut cmd, &name, &mut script);
        files.insert(Path::new("completions").join(file), script);
    }
    // `help` has nothing to say in a manual.
    let mut cmd = ublk_rbd::cli::Cli::command().disable_help_subcommand(true);
    cmd.build();
    manual(&cmd, &name, &mut files)?;
    Ok(files)
}

/// The page of a command and those of its subcommands.
fn manual(cmd: &Command, program: &str, files: &mut Files) -> io::Result<()> {
    for sub in cmd.get_subcommands().filter(|s| !s.is_hide_set()) {
        manual(sub, program, files)?;
    }
    let version = cmd.get_version().unwrap_or_default();
    let man = Man::new(cmd.clone())
        .section(SECTION)
        .source(format!("{program} {version}").trim_end())
        .manual("System administration");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if cmd.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if cmd.get_name() == program {
        page.extend_from_slice(MAIN_PAGE.as_bytes());
    } else {
        page.extend_from_slice(format!(".SH \"SEE ALSO\"\n\\fB{program}\\fR(8)\n").as_bytes());
    }
    files.insert(Path::new("man").join(man.get_filename()), page);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_files_are_what_the_command_line_gives() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut committed = Files::new();
        for dir in ["man", "completions"] {
            for entry in fs::read_dir(root.join(dir)).unwrap() {
                let name = entry.unwrap().file_name();
                let path = Path::new(dir).join(name);
                let content = fs::read(root.join(&path)).unwrap();
                committed.insert(path, content);
            }
        }
        let generated = generate().unwrap();
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        let again = "run `cargo run -p ublk-rbd-packaging` and commit what it writes";
        assert_eq!(names(&generated), names(&committed), "{again}");
        for (path, content) in generated {
            assert!(
                committed[&path] == content,
                "packaging/{} is stale: {again}",
                path.display()
            );
        }
    }

    /// The files that packages install are listed twice, since deb and rpm have a form each.
    #[test]
    fn every_page_is_linked_from_one_above() {
        let files = generate().unwrap();
        let page = |name: &str| {
            let text = &files[&Path::new("man").join(name)];
            String::from_utf8(text.clone()).unwrap()
        };
        assert!(page("ublk-rbd.8").contains("ublk\\-rbd\\-map(8)"));
        assert!(page("ublk-rbd-image.8").contains("ublk\\-rbd\\-image\\-create(8)"));
    }
}
