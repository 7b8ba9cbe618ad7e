"""Studies: long computations that end in a report, one folder each, and the code that they share.

Finished parts are stored on disk (`_cache`), so that an interrupted run resumes. A user's files are never overwritten
(`_output_dir`). Worker processes do the work (`_process_pool`). Results come with a manifest, tidy tables and an HTML
report (`_html_report`).
"""
