"""The laboratory: recipes, data, models, training, studies, reports. It needs the extra `lab`."""
