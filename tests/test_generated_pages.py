"""Tables of pages that are made: each stands on one page, and lacks no value."""

import gallery
import result_tables


def test_every_table_stands_on_one_page() -> None:
    texts = [page.read_text(encoding="utf-8") for page in result_tables.pages()]
    assert sorted(n for text in texts for n in result_tables.placed(text)) == sorted(
        result_tables.TABLES
    )


def test_the_page_in_full_has_every_value_of_every_kept_result() -> None:
    text = gallery.written_in_full()
    for result in gallery.stored_results().values():
        assert f"### {result['figure']}: {result['title']}" in text
        for row in result["rows"]:
            assert f"| {' '.join(row['what'].split())} |" in text
