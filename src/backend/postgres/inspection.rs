//! Inspects a table before it is used: a stranger who may create a table, or who owns it, could run code
//! with the rights of the role that runs dlock (a view, a trigger, a default; CVE-2018-1058).
//!
//! The statement names every function, operator and type with its schema, as all others do: a search path may begin with
//! a stranger's schema.

use tokio_postgres::{Error, Row};

use super::options::Table;

/// Reads what [`is_plain`] judges: of each relation with the name `$1` one row, or one row without any, at a third of the cost
/// of [`STATEMENT`], which explains what is unusual. `$2` is the process, as there.
///
/// In a new session every operator, join and catalog that a statement mentions is looked up first: most of its time. So it
/// returns what it finds, and leaves the comparisons to the client. Whether a role is a superuser is asked by what only a
/// superuser may do to the catalog 1260, `pg_authid` (`aclchk.c`, "Deny anyone permission to update a system catalog"),
/// because the view of roles costs more than the rest. A flag of `pg_class`, such as `relhastriggers`, may still be set
/// after the last trigger was dropped, but is always set while there is one (the manual of PostgreSQL, "pg_class").
pub(super) const SUMMARY: &str = r#"
WITH session AS MATERIALIZED (SELECT pg_catalog.current_schemas(false) AS path, pg_catalog.pg_backend_pid() AS process),
settled AS MATERIALIZED (SELECT path, pg_catalog.set_config('search_path', 'pg_catalog, pg_temp',
  process OPERATOR(pg_catalog.<>) $2) AS search_path FROM session)
SELECT settled.path, class.relkind::pg_catalog.text,
  (SELECT nspname::pg_catalog.text FROM pg_catalog.pg_namespace WHERE oid OPERATOR(pg_catalog.=) class.relnamespace),
  pg_catalog.has_table_privilege(class.relowner, 1260, 'TRUNCATE'),
  pg_catalog.has_table_privilege(SESSION_USER, 1260, 'TRUNCATE') OR EXISTS (SELECT FROM pg_catalog.pg_auth_members
    WHERE pg_catalog.has_table_privilege(roleid, 1260, 'TRUNCATE') AND pg_catalog.pg_has_role(SESSION_USER, roleid, 'MEMBER')),
  ARRAY[pg_catalog.pg_get_userbyid(class.relowner), CURRENT_USER, SESSION_USER]::pg_catalog.text[],
  class.relhastriggers OR class.relhasrules OR class.relrowsecurity OR class.relhassubclass OR class.relispartition,
  class.relchecks, ARRAY(SELECT inhparent FROM pg_catalog.pg_inherits WHERE inhrelid OPERATOR(pg_catalog.=) class.oid),
  ARRAY(SELECT pg_catalog.concat_ws(' ', atthasdef, attidentity, atttypid) FROM pg_catalog.pg_attribute
    WHERE attrelid OPERATOR(pg_catalog.=) class.oid AND NOT attisdropped),
  ARRAY(SELECT indisprimary FROM pg_catalog.pg_index WHERE indrelid OPERATOR(pg_catalog.=) class.oid)
FROM settled LEFT JOIN pg_catalog.pg_class AS class ON class.relname OPERATOR(pg_catalog.=) $1"#;

/// Reads what the tables are whose schemas are `$1` and whose names are `$2`, one row each. It also limits the search
/// path of the session to the schema of the system, if the process that serves it is `$3`, the one that the server
/// named when the connection was opened: otherwise there is a pooler, and the session belongs to other clients too.
/// `$4` is the search path that [`SUMMARY`] read before it did the same, or NULL.
pub(super) const STATEMENT: &str = r#"
WITH session AS MATERIALIZED (SELECT COALESCE($4, pg_catalog.current_schemas(false)) AS path, pg_catalog.pg_backend_pid() AS process),
settled AS MATERIALIZED (SELECT path, pg_catalog.set_config('search_path', 'pg_catalog, pg_temp',
  process OPERATOR(pg_catalog.<>) $3) AS search_path FROM session)
SELECT CURRENT_USER::pg_catalog.text,
  EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.rolsuper AND pg_catalog.pg_has_role(SESSION_USER, role.oid, 'MEMBER')),
  ARRAY(SELECT space.nspname::pg_catalog.text FROM pg_catalog.pg_class AS other JOIN pg_catalog.pg_namespace AS space
    ON space.oid OPERATOR(pg_catalog.=) other.relnamespace WHERE other.relname OPERATOR(pg_catalog.=) wanted.name
    AND space.nspname OPERATOR(pg_catalog.<>) wanted.schema AND space.nspname OPERATOR(pg_catalog.=) ANY (settled.path)
    AND other.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p', 'v', 'm', 'f']::pg_catalog."char"[])),
  class.relkind::pg_catalog.text, owner.rolname::pg_catalog.text, schema_owner.rolname::pg_catalog.text, owner.rolsuper,
  owner.rolname OPERATOR(pg_catalog.=) ANY (ARRAY[CURRENT_USER, SESSION_USER])
    OR owner.oid OPERATOR(pg_catalog.=) space.nspowner
    OR owner.oid OPERATOR(pg_catalog.=) (SELECT datdba FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()),
  ARRAY(
    SELECT pg_catalog.concat('the trigger ', tgname) FROM pg_catalog.pg_trigger WHERE tgrelid OPERATOR(pg_catalog.=) class.oid AND NOT tgisinternal
    UNION ALL SELECT pg_catalog.concat('the rule ', rulename) FROM pg_catalog.pg_rewrite WHERE ev_class OPERATOR(pg_catalog.=) class.oid
    UNION ALL SELECT 'row security' WHERE class.relrowsecurity
    UNION ALL SELECT pg_catalog.concat(CASE WHEN inhparent OPERATOR(pg_catalog.=) class.oid THEN 'the child ' ELSE 'the parent ' END,
      kin_space.nspname, '.', kin.relname) FROM pg_catalog.pg_inherits JOIN pg_catalog.pg_class AS kin
      ON kin.oid OPERATOR(pg_catalog.=) CASE WHEN inhparent OPERATOR(pg_catalog.=) class.oid THEN inhrelid ELSE inhparent END
      JOIN pg_catalog.pg_namespace AS kin_space ON kin_space.oid OPERATOR(pg_catalog.=) kin.relnamespace
      WHERE (inhparent OPERATOR(pg_catalog.=) class.oid) OR (inhrelid OPERATOR(pg_catalog.=) class.oid)
    UNION ALL SELECT pg_catalog.concat(CASE WHEN attgenerated OPERATOR(pg_catalog.=) ''::pg_catalog."char" THEN 'the default of the column '
      ELSE 'the generated column ' END, attname) FROM pg_catalog.pg_attribute
      WHERE attrelid OPERATOR(pg_catalog.=) class.oid AND NOT attisdropped AND atthasdef
    UNION ALL SELECT pg_catalog.concat('the identity column ', attname) FROM pg_catalog.pg_attribute
      WHERE attrelid OPERATOR(pg_catalog.=) class.oid AND NOT attisdropped AND attidentity OPERATOR(pg_catalog.<>) ''::pg_catalog."char"
    UNION ALL SELECT pg_catalog.concat('the type of the column ', attname) FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_type AS kind
      ON kind.oid OPERATOR(pg_catalog.=) atttypid WHERE attrelid OPERATOR(pg_catalog.=) class.oid AND NOT attisdropped
      AND kind.typnamespace OPERATOR(pg_catalog.<>) 'pg_catalog'::pg_catalog.regnamespace
    UNION ALL SELECT pg_catalog.concat('the constraint ', conname) FROM pg_catalog.pg_constraint
      WHERE (conrelid OPERATOR(pg_catalog.=) class.oid AND contype OPERATOR(pg_catalog.<>) ALL (ARRAY['p', 'n', 'u']::pg_catalog."char"[]))
      OR (confrelid OPERATOR(pg_catalog.=) class.oid)
    UNION ALL SELECT pg_catalog.concat('the index ', index.relname) FROM pg_catalog.pg_index AS part JOIN pg_catalog.pg_class AS index
      ON index.oid OPERATOR(pg_catalog.=) part.indexrelid WHERE part.indrelid OPERATOR(pg_catalog.=) class.oid
      AND (part.indexprs IS NOT NULL OR part.indpred IS NOT NULL OR (wanted.place OPERATOR(pg_catalog.=) 1 AND NOT part.indisprimary)
        OR EXISTS (SELECT FROM pg_catalog.pg_opclass AS operators WHERE operators.oid OPERATOR(pg_catalog.=) ANY (part.indclass)
          AND operators.opcnamespace OPERATOR(pg_catalog.<>) 'pg_catalog'::pg_catalog.regnamespace))),
  ARRAY(SELECT attname::pg_catalog.text FROM pg_catalog.pg_attribute WHERE attrelid OPERATOR(pg_catalog.=) class.oid
    AND attnum OPERATOR(pg_catalog.>) 0 AND NOT attisdropped ORDER BY attnum),
  ARRAY(SELECT pg_catalog.format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute WHERE attrelid OPERATOR(pg_catalog.=) class.oid
    AND attnum OPERATOR(pg_catalog.>) 0 AND NOT attisdropped ORDER BY attnum),
  ARRAY(SELECT EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid OPERATOR(pg_catalog.=) attrelid AND indisunique
    AND indnkeyatts OPERATOR(pg_catalog.=) 1 AND indkey[0] OPERATOR(pg_catalog.=) attnum AND indpred IS NULL)::pg_catalog.text
    FROM pg_catalog.pg_attribute WHERE attrelid OPERATOR(pg_catalog.=) class.oid
    AND attnum OPERATOR(pg_catalog.>) 0 AND NOT attisdropped ORDER BY attnum)
FROM settled CROSS JOIN ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY AS wanted(schema, name, place)
LEFT JOIN pg_catalog.pg_namespace AS space ON space.nspname OPERATOR(pg_catalog.=) wanted.schema
LEFT JOIN pg_catalog.pg_class AS class ON (class.relnamespace OPERATOR(pg_catalog.=) space.oid) AND (class.relname OPERATOR(pg_catalog.=) wanted.name)
LEFT JOIN pg_catalog.pg_roles AS owner ON owner.oid OPERATOR(pg_catalog.=) class.relowner
LEFT JOIN pg_catalog.pg_roles AS schema_owner ON schema_owner.oid OPERATOR(pg_catalog.=) space.nspowner
ORDER BY wanted.place"#;

/// The kinds of relations that a statement may name like a table, in the letters of `pg_class.relkind`.
const RELATIONS: [&str; 5] = ["r", "p", "v", "m", "f"];

/// What a relation is, in the letters of `pg_class.relkind`.
fn kind(letter: &str) -> &'static str {
    match letter {
        "r" => "table",
        "p" => "partitioned table",
        "v" => "view",
        "m" => "materialized view",
        "f" => "foreign table",
        _ => "relation of another kind",
    }
}

/// What is known of a table that may be used. Nothing, if [`is_plain`] found nothing unusual about it.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Kind, owner and schema, in words.
    pub(super) description: String,
    /// The name and the type of each column, and whether it is unique.
    pub(super) columns: Vec<[String; 3]>,
    /// Whether the role can act as a superuser.
    pub(super) is_administrator: bool,
}

/// Returns whether the table exists and nothing about it is unusual, by the rows of [`SUMMARY`]: the table is its only
/// relation with this name in the search path, belongs to a superuser or to the role itself, and has nothing by which it
/// could run the code of others. Otherwise [`judge`] decides, and explains.
pub(super) fn is_plain(rows: &[Row], table: &Table) -> Result<bool, Error> {
    /// Objects below are those of the system (`access/transam.h`, FirstUnpinnedObjectId).
    const FIRST_OF_USERS: u32 = 12_000;
    let mut is_plain = false;
    for row in rows {
        let Some(letter) = row.try_get::<_, Option<String>>(1)? else { continue };
        if !RELATIONS.contains(&letter.as_str()) {
            continue;
        }
        let schema: String = row.try_get(2)?;
        if schema != table.schema {
            match table.has_schema || !search_path(rows)?.contains(&schema) {
                true => continue,
                false => return Ok(false),
            }
        }
        let (is_of_superuser, is_administrator): (bool, bool) = (row.try_get(3)?, row.try_get(4)?);
        let roles: Vec<String> = row.try_get(5)?;
        let is_own = roles.split_first().is_some_and(|(owner, own)| own.contains(owner));
        let (has_more, checks): (bool, i16) = (row.try_get(6)?, row.try_get(7)?);
        let parents: Vec<u32> = row.try_get(8)?;
        let (columns, are_primary): (Vec<String>, Vec<bool>) = (row.try_get(9)?, row.try_get(10)?);
        // Neither a default nor an identity (an empty word).
        let is_plain_column = |column: &String| {
            column
                .strip_prefix("f  ")
                .and_then(|kind| kind.parse().ok())
                .is_some_and(|kind: u32| kind < FIRST_OF_USERS)
        };
        is_plain = letter == "r"
            && (is_of_superuser || (is_own && !is_administrator))
            && !has_more
            && checks == 0
            && parents.is_empty()
            && columns.iter().all(is_plain_column)
            // The index of a primary key has neither expressions nor a predicate. Operators other than the system's, as of a
            // key without overlaps, are those of a superuser (CREATE OPERATOR CLASS).
            && are_primary.iter().all(|is_primary| *is_primary);
        if !is_plain {
            return Ok(false);
        }
    }
    Ok(is_plain)
}

/// Returns the search path that the session had, by the rows of [`SUMMARY`].
pub(super) fn search_path(rows: &[Row]) -> Result<Vec<String>, Error> {
    rows.first().map_or(Ok(Vec::new()), |row| row.try_get(0))
}

/// Returns what there is in place of a table, if it may be used; `None` if there is nothing.
///
/// # Errors
/// Why it may not be used.
pub(super) fn judge(
    row: &Row,
    table: &Table,
    trusted: Option<&str>,
) -> Result<Result<Option<Found>, String>, Error> {
    let (role, is_administrator): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
    let others: Vec<String> = row.try_get(2)?;
    let letter: Option<String> = row.try_get(3)?;
    let option = table.option;
    if let Some(schema) = others.first().filter(|_| !table.has_schema) {
        let other = format!("{schema}.{}", table.name);
        let what = match letter {
            None => format!(
                ", which does not exist: move it there (ALTER TABLE ... SET SCHEMA), or name it with {option}={other}"
            ),
            Some(_) => format!(
                ": remove one of them, or name the one to use with {option}={other} or {option}={}.{}",
                table.schema, table.name
            ),
        };
        return Ok(Err(format!(
            "{other} is in the search path of {role}, but locks are kept in {}.{}{what}",
            table.schema, table.name
        )));
    }
    let Some(letter) = letter else { return Ok(Ok(None)) };
    let owner = row.try_get::<_, Option<String>>(4)?.unwrap_or_default();
    let schema_owner = row.try_get::<_, Option<String>>(5)?.unwrap_or_default();
    let is_superuser = row.try_get::<_, Option<bool>>(6)?.unwrap_or_default();
    let is_related = row.try_get::<_, Option<bool>>(7)?.unwrap_or_default();
    let is_trusted = is_superuser || (!is_administrator && (is_related || trusted == Some(owner.as_str())));
    let planted: Vec<String> = row.try_get(8)?;
    if letter != "r" {
        return Ok(Err(format!(
            "{table} of {owner} is a {}, not a table: remove it, or name another table with {option}=",
            kind(&letter)
        )));
    }
    if !is_trusted {
        return Ok(Err(match is_administrator {
            true => format!(
                "the table {table} belongs to {owner}, who is not a superuser, unlike {role}: give dlock a role of its own \
                 (see dlock doctor --policy), or the table to a superuser"
            ),
            false => format!(
                "the table {table} belongs to {owner}, whose code could run with the rights of {role}: drop or move it, or \
                 name its owner with owner={owner} if {owner} is trusted"
            ),
        }));
    }
    if let Some(planted) = planted.first() {
        return Ok(Err(format!(
            "the table {table} of {owner} has more than dlock needs ({planted}), which could run code with the rights of \
             {role}: remove that, or name another table with {option}="
        )));
    }
    let (names, kinds, uniques): (Vec<String>, Vec<String>, Vec<String>) =
        (row.try_get(9)?, row.try_get(10)?, row.try_get(11)?);
    let columns =
        names.into_iter().zip(kinds).zip(uniques).map(|((name, kind), unique)| [name, kind, unique]);
    let description =
        format!("a {} of {owner}, in the schema {} of {schema_owner}", kind(&letter), table.schema);
    Ok(Ok(Some(Found { description, columns: columns.collect(), is_administrator })))
}
