"""Run folders become tables, figures and one page; the only place that draws."""
