"""What several tables share: inputs, intervals, Markdown, figures."""
