//! The layout of a tracepoint's record, as its `format` file says.

/// One number in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    /// The value in `record`, if the record has it.
    pub fn get(&self, record: &[u8]) -> Option<u64> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.size)?)?;
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }
}

/// A field by name: "field:unsigned long i_ino; offset:8; size:8; signed:0;"
pub fn field(format: &str, name: &str) -> Option<Field> {
    for line in format.lines() {
        let mut parts = line.split(';').map(str::trim);
        let Some(declaration) = parts.next().and_then(|part| part.strip_prefix("field:")) else {
            continue;
        };
        if declaration.rsplit([' ', '*']).next() != Some(name) {
            continue;
        }
        let mut number =
            |prefix: &str| -> Option<usize> { parts.next()?.strip_prefix(prefix)?.parse().ok() };
        let field = Field {
            offset: number("offset:")?,
            size: number("size:")?,
        };
        return (1..=8).contains(&field.size).then_some(field);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "\
name: mm_filemap_get_pages
ID: 599
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:unsigned long i_ino;\toffset:8;\tsize:8;\tsigned:0;
\tfield:dev_t s_dev;\toffset:16;\tsize:4;\tsigned:0;
\tfield:struct folio *folio;\toffset:24;\tsize:8;\tsigned:0;
\tfield:char name[16];\toffset:32;\tsize:16;\tsigned:0;
";

    #[test]
    fn finds_fields() {
        let dev = field(FORMAT, "s_dev").unwrap();
        assert_eq!((dev.offset, dev.size), (16, 4));
        assert!(field(FORMAT, "folio").is_some());
        assert!(field(FORMAT, "ino").is_none());
        assert!(field(FORMAT, "name[16]").is_none(), "no number");
    }

    #[test]
    fn reads_values() {
        let mut record = [0u8; 24];
        record[16] = 0x34;
        record[17] = 0x12;
        assert_eq!(field(FORMAT, "s_dev").unwrap().get(&record), Some(0x1234));
        assert_eq!(field(FORMAT, "folio").unwrap().get(&record), None);
    }
}
