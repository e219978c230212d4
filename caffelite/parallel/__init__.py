"""Trainings on several processes, which share each batch."""
