//! Sizes as people write them: 512M, 1.5G, 4096K, plain bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// A number of bytes; never zero where it was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(u64);

impl Size {
    /// `None` for zero bytes.
    pub fn new(bytes: u64) -> Option<Size> {
        (bytes > 0).then_some(Size(bytes))
    }

    /// For showing any number of bytes.
    pub fn from_bytes(bytes: u64) -> Size {
        Size(bytes)
    }

    /// As somebody may have written it: `Display` rounds.
    pub fn exact(self) -> String {
        let fits = [(TIB, "T"), (GIB, "G"), (MIB, "M"), (KIB, "K"), (1, "")];
        fits.iter()
            .find(|(unit, _)| self.0 % unit == 0)
            .map_or_else(String::new, |(unit, letter)| {
                format!("{}{letter}", self.0 / unit)
            })
    }

    pub fn bytes(self) -> u64 {
        self.0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// Not of the form number, unit.
    Malformed(String),
    /// Half a byte.
    Fraction(String),
    Zero,
    TooLarge(String),
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::Malformed(text) => write!(
                f,
                "'{text}' is not a size: write a number with K, M, G or T, as in 512M or 1.5G"
            ),
            SizeError::Fraction(text) => write!(
                f,
                "'{text}' is a fraction of a byte: add K, M, G or T, as in {text}G"
            ),
            SizeError::Zero => write!(f, "a size of zero: give at least one byte, as in 512M"),
            SizeError::TooLarge(text) => {
                write!(
                    f,
                    "'{text}' is more than 64 bits can count: give less than 16777216T"
                )
            }
        }
    }
}

impl std::error::Error for SizeError {}

impl FromStr for Size {
    type Err = SizeError;

    /// Units are powers of 1024; `M`, `m`, `MB` and `MiB` mean the same.
    /// Fractions are cut to whole bytes.
    fn from_str(text: &str) -> Result<Size, SizeError> {
        let malformed = || SizeError::Malformed(text.to_owned());
        let too_large = || SizeError::TooLarge(text.to_owned());
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit_bytes(unit.trim_start()).ok_or_else(malformed)?;
        let (whole, fraction) = match number.split_once('.') {
            None => (number, ""),
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return Err(malformed()),
        };
        if whole.is_empty() || fraction.contains('.') {
            return Err(malformed());
        }
        if unit == 1 && !fraction.is_empty() {
            return Err(SizeError::Fraction(text.to_owned()));
        }
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let bytes = whole
            .checked_mul(unit)
            .and_then(|bytes| bytes.checked_add(fraction_of(fraction, unit)))
            .ok_or_else(too_large)?;
        Size::new(bytes).ok_or(SizeError::Zero)
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let letter = unit.trim_end_matches('b').trim_end_matches('i');
    // "b" alone is bytes; "i", "ib" and "bb" are nothing.
    match (letter, unit.as_str()) {
        ("", "" | "b") => Some(1),
        ("k", "k" | "kb" | "ki" | "kib") => Some(KIB),
        ("m", "m" | "mb" | "mi" | "mib") => Some(MIB),
        ("g", "g" | "gb" | "gi" | "gib") => Some(GIB),
        ("t", "t" | "tb" | "ti" | "tib") => Some(TIB),
        _ => None,
    }
}

/// `digits` after the point, of `unit`, cut to whole bytes. Exact: a float
/// would turn 4.3G into something that is not what was written.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let mut numerator = 0u128;
    let mut denominator = 1u128;
    // Beyond 18 digits nothing of a unit of 2^40 is left.
    for digit in digits.bytes().take(18) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    (numerator * u128::from(unit) / denominator) as u64
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, letter) in [(TIB, 'T'), (GIB, 'G'), (MIB, 'M'), (KIB, 'K')] {
            if self.0 >= unit {
                return if self.0 % unit == 0 {
                    write!(f, "{}{letter}", self.0 / unit)
                } else {
                    write!(f, "{:.1}{letter}", self.0 as f64 / unit as f64)
                };
            }
        }
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u64, SizeError> {
        text.parse::<Size>().map(Size::bytes)
    }

    #[test]
    fn plain_and_units() {
        assert_eq!(parse("1"), Ok(1));
        assert_eq!(parse("4096K"), Ok(4 * MIB));
        assert_eq!(parse("512M"), Ok(512 * MIB));
        assert_eq!(parse("512m"), Ok(512 * MIB));
        assert_eq!(parse("4G"), Ok(4 * GIB));
        assert_eq!(parse("4GiB"), Ok(4 * GIB));
        assert_eq!(parse("4GB"), Ok(4 * GIB));
        assert_eq!(parse("4 GiB"), Ok(4 * GIB));
        assert_eq!(parse("2T"), Ok(2 * TIB));
        assert_eq!(parse("7B"), Ok(7));
    }

    #[test]
    fn fractions_are_exact() {
        assert_eq!(parse("1.5G"), Ok(GIB + GIB / 2));
        assert_eq!(parse("0.5K"), Ok(512));
        assert_eq!(parse("4.3G"), Ok(4_617_089_843));
        assert_eq!(parse("0.00000000000000000001G"), Err(SizeError::Zero));
    }

    #[test]
    fn refused() {
        for text in [
            "", "G", "x", "12Q", "-1", "1.G", ".5G", "1.2.3G", "1ib", "1bb", "1GG", "0x10",
        ] {
            assert_eq!(
                parse(text),
                Err(SizeError::Malformed(text.into())),
                "{text}"
            );
        }
        assert_eq!(parse("1.5"), Err(SizeError::Fraction("1.5".into())));
        assert_eq!(parse("0"), Err(SizeError::Zero));
        assert_eq!(parse("0G"), Err(SizeError::Zero));
        for text in ["16777216T", "99999999999999999999"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge(text.into())));
        }
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn shown_as_written() {
        assert_eq!(Size::from_bytes(65535 * KIB).exact(), "65535K");
        assert_eq!(Size::from_bytes(4097).exact(), "4097");
        for text in ["1", "512M", "1.5G", "4G", "1000"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
    }
}
