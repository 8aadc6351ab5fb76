//! The files that a report is written to.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{io_error, Error};
use super::findings::Report;
use super::{html, markdown};

#[derive(clap::Args, Debug, Clone, Default)]
pub struct PageArgs {
    /// Write a page with plots and all figures to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write all figures to this file as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl PageArgs {
    pub fn write(&self, report: &Report) -> Result<(), Error> {
        if let Some(path) = &self.html {
            let page = html::page(report).map_err(Error::Report)?;
            write(path, "write the file given to --html", page)?;
        }
        if let Some(path) = &self.markdown {
            write(
                path,
                "write the file given to --markdown",
                markdown::page(report),
            )?;
        }
        Ok(())
    }
}

fn write(path: &Path, what: &'static str, page: String) -> Result<(), Error> {
    fs::write(path, page).map_err(io_error(what))
}
